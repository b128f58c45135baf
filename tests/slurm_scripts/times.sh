#!/bin/sh
#SBATCH -t 90
#SBATCH --time-min=30
#SBATCH --begin=now+2hours
#SBATCH --deadline=2099-01-01T00:00:00
#SBATCH --signal=10@90
#SBATCH --no-requeue
#SBATCH --hold
#SBATCH --export="NONE,DATA=/data,MODE='a,b'"
./run
