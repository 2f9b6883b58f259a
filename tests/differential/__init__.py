"""Runs the same requests through blockmgr and another system's manager, step by step."""
