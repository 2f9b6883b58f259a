"""The specification of the manager: the same calls, answered by scanning lists.

Begin with ``manager.py``. The stress program (``tests.stress``) and the engines of
``tests.groups`` make each call on the manager and on the specification, and compare.
"""
