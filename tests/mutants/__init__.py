"""The real core and the real Python layer, each time with one bug planted."""
