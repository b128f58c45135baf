#!/bin/bash
#SBATCH --job-name=wrong
#SBATCH --nodez=2
#SBATCH --gres=gpu:2
#SBATCH --time 10 minutes
#GPU --gpu 4
srun python train.py
#SBATCH --mem=4G
