"""gRPC messages and methods as JSON and requests of REST, and back. Both sides use it: the service and the client.

The descriptors of :mod:`gpu_platform.v1` are the only source: ``scripts/gen_proto.py`` writes them from the REST
description. Nothing here is imported where gRPC is not used.
"""
