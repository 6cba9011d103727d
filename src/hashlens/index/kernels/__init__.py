"""Kernels: the compiled loops that read all codes (scan.py), and how they count bits (pieces.py, nibbles.py)."""

PIECE = 16  # bits of a code that the loops read as one number, see Codes.pieces
