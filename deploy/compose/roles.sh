#!/bin/sh
# An account of PostgreSQL for the platform and another one for Temporal. Each owns its databases and reaches no other.
# Safe to repeat. In installations of earlier releases one superuser, `platform`, owned everything: its tables are handed
# over, and its password is replaced.
set -eu
here=$(dirname "$0")
passwords=${PASSWORDS:-/run/passwords}
export PASSWORDS="$passwords" PGDATABASE=postgres
superuser=postgres
psql --no-psqlrc --username=$superuser --command='' 2>/dev/null || superuser=platform

run() {
    psql --no-psqlrc --quiet --username=$superuser --set=ON_ERROR_STOP=1 "$@"
}

run --set=superuser=$superuser --file="$here/roles.sql"
run --dbname=gpu_platform --set=owner=gpu_platform --file="$here/owner.sql"
for database in temporal temporal_visibility; do
    run --dbname=$database --set=owner=temporal --file="$here/owner.sql"
done
