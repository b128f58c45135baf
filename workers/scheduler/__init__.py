"""The scheduler's process: what the leader does all the time. It decides, watches leases, restores and tidies up."""
