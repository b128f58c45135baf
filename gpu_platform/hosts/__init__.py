"""One GPU host: what it has, whether it is healthy, and the processes that run on it.

- ``nvml`` / ``simulated_nvml`` / ``inject``: the one seam; everything above calls the pynvml API.
- ``inventory``: what the host registers.
- ``fault_policy`` / ``health`` / ``history``: what strikes a GPU and what is to be done.
- ``agent``: start, watch and stop ranks. ``spawner`` forks a ``supervisor`` per rank, which
  outlives both; ``records`` is what they agree on, on disk; ``process_tree`` finds and kills.

- ``isolation``: what this host can guarantee, and the orders for it. ``jail`` raises and takes down what
  stands around an attempt, out of ``cgroup``, ``device_filter``, ``sandbox`` and ``privileges``.
"""
