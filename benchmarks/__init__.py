"""Benchmarks of the block manager: micro benchmarks, budgets, and comparison with peers."""
