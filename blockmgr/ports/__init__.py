"""Interfaces of existing engines, on blockmgr's core.

Each module has the interface of one engine or library, and is independent of the others: import the
one you need.
"""
