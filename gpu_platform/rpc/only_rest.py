"""What gRPC does not have."""

from __future__ import annotations

ONLY_REST = {
    "POST /v1/hosts/{name}/report": "hosts report over REST, and show their certificate there",
    "POST /v1/hosts/{name}/heartbeat": "as a report",
    "POST /v1/hosts/{name}/attempts/{job_id}/{attempt}/secrets": "as a report",
    "GET /v1/hosts/{name}/attempts/{job_id}/{attempt}/upload": "as a report",
    "GET /v1/identity/authorities": "a machine asks it that has no certificate yet",
    "POST /v1/identity/enroll": "as authorities",
    "POST /v1/identity/renew": "as authorities",
    "POST /v1/alertmanager/api/v2/alerts": "Prometheus sends alerts over HTTP",
    "POST /v1/temporal/decode": "Temporal's codec protocol is HTTP",
    "GET /healthz": "grpc.health.v1 answers it",
    "GET /metrics": "Prometheus scrapes HTTP",
}
"""Operations that gRPC does not have, and why. Everything else in the REST description has an RPC."""
