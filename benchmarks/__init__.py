"""Benchmarks: committed results, the commands that make them, and speed as ratios. Not part of the package."""
