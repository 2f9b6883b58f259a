"""What hybrid models find in the cache: blockmgr beside vLLM, in pools of as many bytes."""
