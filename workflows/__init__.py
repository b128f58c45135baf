"""Workflows: what happens to jobs, GPUs and hosts, in order. Deterministic: no clock, no randomness, no I/O of their
own."""
