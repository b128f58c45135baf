#!/bin/bash
#SBATCH -J llama-finetune
#SBATCH -p a100
#SBATCH -A nlp-group
#SBATCH -N 4
#SBATCH --ntasks-per-node=1          # one launcher on each node
#SBATCH --gpus-per-node=a100:8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH -t 2-00:00:00
#SBATCH -o logs/%x_%j.out
#SBATCH -e logs/%x_%j.err
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=ada@example.org

module load cuda/12.4
source activate llm
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
head_node=${nodes[0]}
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d \
  --rdzv_endpoint $head_node:29500 train.py "$@"
