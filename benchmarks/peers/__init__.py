"""blockmgr and the systems people would otherwise use do the same work in one run.

``benchmarks/peers/run FOLDER`` makes an environment for them and starts ``python -m
benchmarks.peers``; ``python -m benchmarks.peers.page`` writes docs/benchmarks.md from its result.
"""
