"""How fast are the planned copies applied to K/V tensors? ``python -m benchmarks.kv``."""
