"""Instruction counts of the hot calls, recorded in the repository."""
