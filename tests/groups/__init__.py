"""The specification of a manager for several groups of layers, and tests against it."""
