"""What a call of a port costs beside the calls of the core it stands on.

``python -m benchmarks.ports`` times both sides in turns and prints the ratio; the budget is 5.
"""
