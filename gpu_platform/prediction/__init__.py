"""What is learned from runs that have ended: how long jobs will probably run. Pure: no I/O and no clock."""
