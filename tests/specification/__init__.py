"""The specification of the manager, in plain Python: the first pages to read.

A *manager* decides, for an engine that computes token after token, in which block of memory the
K/V of each token lies. A *sequence* has tokens; its table names its blocks. What one prompt has
computed, another prompt that begins with the same tokens finds and does not compute again. Nothing
that a sequence or a later prompt may read is ever overwritten. Each call does all that it says, or
raises and changes nothing.

Each file answers one question, by scanning lists. Read them in this order:

1. ``layers.py``: what does the query at a position read? A group of layers is data.
2. ``manager.py``: what does each call promise, in the order of a sequence's life?
3. ``blocks.py``: who uses a block, which are free, what can be found?
4. ``steps.py``: when does a copy run, and who may still read a block?
5. ``admission.py``: what does a prompt find, and what does it need?
6. ``keeping.py``: what does a commit make findable, and where can a sequence go back to?
7. ``forgetting.py``: what if a block is wrong, or the whole cache?
8. ``resuming.py``: what do sequences share that resume together?
9. ``leaves.py`` and ``boundaries.py``: what is evicted next, in one group and in several?

``tests/stress`` makes each call on the manager and here, and compares. Nothing is shared with the
core but its records and its errors. The memory there judges both: what a forward reads must have
been computed from its own tokens.
"""
