"""What a call of a port costs, compared with the core calls that do the same work.

``python -m benchmarks.ports`` times both sides in turns and prints the ratio; the budget is 5.
"""
