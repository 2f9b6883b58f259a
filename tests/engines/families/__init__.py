"""What vLLM's planner makes of each family of models, and whether blockmgr takes it.

``python -m tests.engines.families`` writes ``plans.json`` and the table in docs/guides/vllm.md;
with ``--check`` it compares the plans with that file instead. It needs vLLM, but neither a GPU nor
weights. ``python -m tests.engines.families.table`` needs nothing, and writes the table only.
"""
