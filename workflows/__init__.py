"""What happens, in order. Deterministic: no clock, no randomness, no I/O of its own."""
