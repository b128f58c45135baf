#!/bin/bash
#SBATCH --gpus=8 --nodes=2
#SBATCH --time=1:00:00
#GPU --time 2h --priority 5
#GPU --env MODE=fast
# Slurm reads the lines above with SBATCH only; here the GPU lines win.
echo "$MODE"
