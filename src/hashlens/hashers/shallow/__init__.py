"""Shallow methods: fixed features in, codes out; one file each, only its mathematics."""
