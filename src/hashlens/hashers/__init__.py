"""Hashers: images or features in, codes out."""
