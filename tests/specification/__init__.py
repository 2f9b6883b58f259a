"""The specification of the manager: the same calls, answered by scanning lists.

Read ``manager.py`` first; it names the other files, in their order. The stress program
(``tests.stress``) makes each call on the manager and on the specification, and compares.
"""
