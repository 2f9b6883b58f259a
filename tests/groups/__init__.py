"""What a manager for several groups of layers has to do, written before there is one."""
