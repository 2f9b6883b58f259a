"""How fast are planned copies applied to K/V tensors? Run ``python -m benchmarks.kv``."""
