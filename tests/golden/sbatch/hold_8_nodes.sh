#!/bin/bash

# Parameters
#SBATCH --comment=llmbench:20261121-120000-abcdef
#SBATCH --error=/shared/reports/20261121-120000-abcdef/allocation/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=llmbench-hold
#SBATCH --mem=0
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/reports/20261121-120000-abcdef/allocation/%j_0_log.out
#SBATCH --signal=CONT@1
#SBATCH --time=245

# command
export SUBMITIT_EXECUTOR=slurm
/venv/bin/python -u -m pytest_llmbench.workloads.node.begin /shared/reports/20261121-120000-abcdef/allocation
