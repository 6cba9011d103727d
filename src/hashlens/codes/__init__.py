"""A model and images in, packed binary codes out; bits.py decides what a code is."""

from hashlens.codes.bits import Codes as Codes
