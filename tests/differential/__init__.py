"""The same requests through another system's block manager, step by step."""
