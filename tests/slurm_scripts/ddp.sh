#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:10:00
#SBATCH --output=%x.out

export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "nodes: $SLURM_JOB_NODELIST head: $HEAD tasks: $SLURM_NTASKS"

srun --kill-on-bad-exit=1 --label python3 -c '
import os
e = os.environ
print("rank", e["SLURM_PROCID"], "local", e["SLURM_LOCALID"], "on", e["SLURMD_NODENAME"], "of", e["SLURM_NTASKS"],
      "head", e["HEAD"] + ":" + e["MASTER_PORT"], "torch", e["RANK"], e["LOCAL_RANK"], e["WORLD_SIZE"], "gpus", len(e["CUDA_VISIBLE_DEVICES"].split(",")))
'
echo "srun ended with $?"
