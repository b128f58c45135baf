"""One GPU host: what it has, whether it is healthy, and the processes that run on it.

``README.md`` beside this file has a picture, the words and the invariants. Begin with ``node_worker``.

- ``node_worker``: prepares, launches, watches and stops ranks of an attempt. ``attempt_watch``: limits and progress.
- ``stages``: what a host does before and after each attempt.
- ``processes``: the spawner, the supervisor of each rank, logs, commands beside a rank, stopping.
- ``isolation``: the jail around an attempt (cgroup, device filter, sandbox, privileges), and the orders for it.
- ``nvml``: the GPU library, real or simulated. ``inventory``: what the host registers.
- ``health``: conditions and XIDs become fault reports. ``accounting``: what attempts use.
- ``sharing``: MIG, MPS and time slices. ``checkpoints``: asking for them, resuming, retention.
- ``system``: paths, records on disk, processes and files of the kernel.
"""
