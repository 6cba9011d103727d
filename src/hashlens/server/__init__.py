"""The search page and its HTTP interface: an index and a model in, a server out."""
