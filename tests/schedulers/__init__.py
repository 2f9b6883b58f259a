"""Other engines' own schedulers, driving the ports."""
