"""The groups of the API's routes, in the order of ``/docs`` and of the reference: what users ask for comes first."""

from __future__ import annotations

GROUPS: dict[str, str] = {
    "jobs": "Submit a job, see it, change it, stop it.",
    "arrays": "Many elements of one job.",
    "pipelines": "Jobs that depend on each other.",
    "schedules": "Jobs that are submitted again and again.",
    "queue": "Why a job waits, when it would start, and what if the cluster were another.",
    "events and logs": "What happened, and what programs print.",
    "commands beside a rank": "Run a command, open a terminal or forward a port where a job runs.",
    "checkpoints": "Checkpoints of jobs, and the directories that hold them.",
    "uploads": "Code that is sent with a job.",
    "secrets": "Values that the jobs of a namespace use and nobody reads back.",
    "notifications": "Who is told of jobs.",
    "usage": "What jobs, users and namespaces used.",
    "metrics": "What GPUs did in the last hours.",
    "reservations": "Advance reservations and maintenance windows.",
    "hosts": "Hosts, their states, and the whole cluster.",
    "GPUs": "GPUs, their states, their health, and their repair.",
    "access": "Who you are, API tokens, and signing in.",
    "audit": "Who was let in, and who was refused.",
    "alerts": "Alerts that Prometheus sends.",
    "temporal": "For the Temporal UI.",
    "health of the service": "Does this service work, and does it reach what it needs?",
    "identity": "Certificates of machines: enrolment, renewal, revocation.",
    "node workers": "Only node workers ask for these.",
}
"""Tag of routes -> what they are about."""

TAGS = [{"name": name, "description": text} for name, text in GROUPS.items()]
"""As OpenAPI has them."""
