#!/bin/sh
# Starts Temporal with the password from the file: its image reads it from a variable only.
set -eu
POSTGRES_PWD=$(cat /run/temporal/password)
export POSTGRES_PWD
exec /etc/temporal/entrypoint.sh
