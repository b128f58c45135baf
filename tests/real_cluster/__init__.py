"""The platform as it is installed, on one machine: a real Temporal server and PostgreSQL, two of each process.

``python -m tests.real_cluster`` (``make cluster``) starts it and stays up.
"""
