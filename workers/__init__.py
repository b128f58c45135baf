"""The processes: what each one runs, and what it does beside its Temporal worker (leases, faults, votes, readings)."""
