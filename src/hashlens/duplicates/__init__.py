"""Duplicates of a folder of images: identical files, copies and look-alikes.

images → looks (looks.py) → pairs that may be copies, and are (copies.py, align.py) → groups (find.py) → a page or a
table (page.py), or files that are moved away and back (move.py)
"""
