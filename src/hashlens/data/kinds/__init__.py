"""Kinds of sources: one module for each."""
