"""What a manager, a pool or a port answers, against what then happens, in random small worlds."""
