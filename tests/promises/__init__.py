"""What a port answers, against what then happens, in random small worlds."""
