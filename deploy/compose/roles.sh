#!/bin/sh
# An account of PostgreSQL for the platform and another one for Temporal. Each owns its databases and reaches no other.
# Safe to repeat.
set -eu
export PASSWORDS="${PASSWORDS:-/run/passwords}"
psql --no-psqlrc --quiet --username=postgres --dbname=postgres --set=ON_ERROR_STOP=1 --file="$(dirname "$0")/roles.sql"
