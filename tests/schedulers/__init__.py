"""Schedulers of other engines drive the ports."""
