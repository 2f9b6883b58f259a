"""The real core and the real Python layer, with one planted bug at a time."""
