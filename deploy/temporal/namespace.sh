#!/bin/sh
# Creates the namespace of our workflows; closed ones stay visible for RETENTION.
set -eu
until temporal operator cluster health; do sleep 1; done
temporal operator namespace describe -n "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
    temporal operator namespace create -n "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
