"""The gRPC side of the service: each call is a request of REST to the same application, in this process.

So who may do what, limits, the audit log, idempotency keys and errors are the same code. Imported only where
``service.grpc_port`` is set.
"""
