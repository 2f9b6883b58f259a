"""Answers of a manager, a pool or a port, compared with what then happens in small worlds."""
