#!/bin/bash

# Parameters
#SBATCH --comment=llmbench:20261121-120000-abcdef
#SBATCH --error=/shared/reports/20261121-120000-abcdef/runs/opt175b/logs/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=llmbench-opt175b
#SBATCH --mem=0
#SBATCH --no-requeue
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/shared/reports/20261121-120000-abcdef/runs/opt175b/logs/%j_0_log.out
#SBATCH --signal=CONT@1
#SBATCH --time=240

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/reports/20261121-120000-abcdef/runs/opt175b/logs/%j_%t_log.out --error /shared/reports/20261121-120000-abcdef/runs/opt175b/logs/%j_%t_log.err --mem=0 --kill-on-bad-exit=1 --cpu-bind=none /venv/bin/python -u -m pytest_llmbench.workloads.node.begin /shared/reports/20261121-120000-abcdef/runs/opt175b/logs
