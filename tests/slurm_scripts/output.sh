#!/bin/bash
#SBATCH --job-name=out
#SBATCH --output=%x-%u.log
#SBATCH --error=%x.err
echo "to stdout"
echo "to stderr" >&2
cd "$SLURM_SUBMIT_DIR" && pwd
exit 3
