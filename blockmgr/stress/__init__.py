"""Random operations under three detectors: run it with ``python -m blockmgr.stress``.

Every operation goes to the manager, to a slow and obviously right model of it, and to a memory in
which every slot remembers the prefix it was computed from. One seed repeats a run exactly; a run
that fails is cut down to the operations it takes, and kept in a file that can be run again.
"""
