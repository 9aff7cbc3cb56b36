#!/bin/bash

# Parameters
#SBATCH --account=ml
#SBATCH --comment='llmbench:20261121-120000-abcdef ticket 4711'
#SBATCH --constraint='ib&a100'
#SBATCH --error=/shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_0_log.err
#SBATCH --exclude=n3
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=llmbench-opt125m
#SBATCH --mem=0
#SBATCH --no-requeue
#SBATCH --nodelist='n[1-4]'
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --reservation=maintenance
#SBATCH --signal=CONT@1
#SBATCH --time=95

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_%t_log.out --error /shared/reports/20261121-120000-abcdef/runs/opt125m/logs/%j_%t_log.err --mem=0 --kill-on-bad-exit=1 --cpu-bind=none /venv/bin/python -u -m pytest_llmbench.workloads.node.begin /shared/reports/20261121-120000-abcdef/runs/opt125m/logs
