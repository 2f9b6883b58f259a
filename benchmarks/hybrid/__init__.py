"""What hybrid models find in the cache: blockmgr and vLLM, in pools of equal size."""
