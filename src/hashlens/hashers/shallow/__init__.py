"""Shallow methods: fixed features in, codes out; one file per method, with only its mathematics."""
