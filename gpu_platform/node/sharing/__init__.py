"""Sharing one GPU between jobs: MIG instances, MPS daemons, time slices, and the compute mode that fits."""
