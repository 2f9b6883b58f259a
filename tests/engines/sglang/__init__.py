"""SGLang's own scheduler on blockmgr's prefix cache, with a worker that computes nothing."""
