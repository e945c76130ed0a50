"""Jobs of two ranks: real processes on the CPU, and two cards of the fake library beside them."""
