"""Mutants that nobody chose: drawn at random by line and operator, in C++ and in Python."""
