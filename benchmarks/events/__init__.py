"""What events cost, beside vLLM's publisher on the same blocks."""
