"""Learning from clicks: "more like this" and "less like this" in, an index with better codes out.

marks by a person → triplets in a file beside the index (file.py) → a change of the hash layer (learning.py) → new codes
from cached outputs of the model, if held-out triplets show that they are better (refine.py)
"""
