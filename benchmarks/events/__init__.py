"""What events cost, compared with vLLM's publisher on the same blocks."""
