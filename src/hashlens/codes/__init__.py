"""Codes: a model and images in, packed binary codes out; bits.py defines what a code is."""

from hashlens.codes.bits import Codes as Codes

MANIFEST = "manifest.json"  # in every codes folder (folder.py)
RUN_CODES = "codes/database"  # codes folder inside a run or a comparison
