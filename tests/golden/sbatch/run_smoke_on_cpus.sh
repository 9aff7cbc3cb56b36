#!/bin/bash

# Parameters
#SBATCH --comment=llmbench:20261121-120000-abcdef
#SBATCH --error=/shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_0_log.err
#SBATCH --exclusive
#SBATCH --job-name=llmbench-opt125m
#SBATCH --mem=0
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_0_log.out
#SBATCH --signal=CONT@1
#SBATCH --time=10

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_%t_log.out --error /shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_%t_log.err --mem=0 --kill-on-bad-exit=1 --cpu-bind=none /venv/bin/python -u -m pytest_llmbench.workloads.node.begin /shared/reports/20261121-120000-abcdef/runs/opt125m/logs
