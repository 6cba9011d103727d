"""Benchmarks: committed results, the commands that produce them, and speed as ratios. Not part of the package."""
