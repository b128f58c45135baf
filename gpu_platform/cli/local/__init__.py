"""Commands that work on this machine: they run programs of the platform, or use parts of it that need its packages.

Only this folder of the command line imports more of the library than the client. Where the distribution
``gpu-platform-cluster`` is not installed, these commands say so (:mod:`gpu_platform.cli.local.programs`).
"""
