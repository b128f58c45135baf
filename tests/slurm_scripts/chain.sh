#!/bin/bash
# Submits three jobs, each after the one before.
set -eu
first=$(sbatch --parsable --job-name=prep --wrap 'echo prepared; exit 0')
second=$(sbatch --parsable --job-name=train --dependency=afterok:"$first" --wrap 'echo trained; exit 4')
third=$(sbatch --parsable --job-name=report --dependency=afternotok:"$second" --wrap 'echo "no model"')
echo "$first $second $third"
