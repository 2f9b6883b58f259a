"""How fast the block manager is: micro benchmarks, budgets, and peers in the same process."""
