"""Random mutants: drawn by line and operator, in C++ and in Python."""
