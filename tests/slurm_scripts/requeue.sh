#!/bin/bash
#SBATCH --job-name=requeue
#SBATCH --time=0:06
#SBATCH --signal=B:USR1@4
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x.out

echo "restart ${SLURM_RESTART_COUNT:-0}"
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then echo "goes on from the checkpoint"; exit 0; fi
save_and_requeue() { echo "caught USR1"; touch checkpoint; scontrol requeue "$SLURM_JOB_ID"; }
trap save_and_requeue USR1
srun sleep 60 &
wait
wait
