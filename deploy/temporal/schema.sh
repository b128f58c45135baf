#!/bin/sh
# Creates the tables of Temporal's two databases and brings them up to date. Safe to repeat.
set -eu
# The tool reads SQL_PASSWORD itself, and has the tables of its own release in it.
SQL_PASSWORD=$(cat "${PASSWORD_FILE:-/run/temporal/password}")
export SQL_PASSWORD
for database in temporal temporal_visibility; do
    tool="temporal-sql-tool --plugin postgres12 --ep $POSTGRES_SEEDS -p $DB_PORT -u $POSTGRES_USER --db $database"
    case $database in temporal) name=temporal ;; *) name=visibility ;; esac
    $tool setup-schema -v 0.0
    $tool update-schema --schema-name postgresql/v12/$name
done
