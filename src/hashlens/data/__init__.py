"""Data: sources of images and labels, splits, and pixels."""

from hashlens.data.sources import SOURCES, Columns, Source, make_protocol, make_protocols, open_source, readable

__all__ = ["SOURCES", "Columns", "Source", "make_protocol", "make_protocols", "open_source", "readable"]
