"""Random operations under three detectors; run it with ``python -m tests.stress`` in a clone.

Every operation goes to the manager, to a slow and obviously right model of it, and to a memory in
which every slot stores the prefix it was computed from. The same seed repeats a run exactly. A
failing run is reduced to the operations it needs, and saved in a file that can be run again.
"""
