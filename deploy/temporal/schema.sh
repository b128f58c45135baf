#!/bin/sh
# Creates the tables of Temporal's two databases and brings them up to date. Safe to repeat.
set -eu
# The tool reads SQL_PASSWORD itself.
SQL_PASSWORD=$(cat /run/temporal/password)
export SQL_PASSWORD
schema=/etc/temporal/schema/postgresql/v12
for database in temporal temporal_visibility; do
    tool="temporal-sql-tool --plugin postgres12 --ep $POSTGRES_SEEDS -p $DB_PORT -u $POSTGRES_USER --db $database"
    case $database in temporal) folder=temporal ;; *) folder=visibility ;; esac
    $tool setup-schema -v 0.0
    $tool update-schema -d "$schema/$folder/versioned"
done
