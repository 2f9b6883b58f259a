"""The interfaces that people program against already, on the one core.

Each module speaks for one engine or ecosystem and stands alone: import the one you need.
"""
