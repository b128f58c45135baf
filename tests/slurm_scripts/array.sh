#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-4:2%2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:05:00
#SBATCH --output=sweep-%A_%a.out

# One learning rate for each element.
LRS=(1e-2 3e-3 1e-3 3e-4 1e-4)
index=${SLURM_ARRAY_TASK_ID}
echo "element ${index} of ${SLURM_ARRAY_TASK_COUNT} (${SLURM_ARRAY_TASK_MIN}-${SLURM_ARRAY_TASK_MAX}): lr ${LRS[$index]}"
echo "parent ${SLURM_ARRAY_JOB_ID} job ${SLURM_JOB_ID}"
