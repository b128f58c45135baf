"""Messages and services of gRPC, version 1. Written by ``scripts/gen_proto.py`` from ``proto/gpu_platform/v1``."""
