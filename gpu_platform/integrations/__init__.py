"""Frameworks that run on the platform's jobs. Each module needs its framework, which is an extra of the package."""
