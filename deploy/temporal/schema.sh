#!/bin/sh
# Creates Temporal's two databases and brings their schema up to date. Safe to repeat.
# SQL_PASSWORD is read by the tool itself.
set -eu
schema=/etc/temporal/schema/postgresql/v12
for database in temporal temporal_visibility; do
    tool="temporal-sql-tool --plugin postgres12 --ep $POSTGRES_SEEDS -p $DB_PORT -u $POSTGRES_USER --db $database"
    case $database in temporal) folder=temporal ;; *) folder=visibility ;; esac
    $tool create
    $tool setup-schema -v 0.0
    $tool update-schema -d "$schema/$folder/versioned"
done
