"""Instruction counts of the hot calls, kept in the repository."""
