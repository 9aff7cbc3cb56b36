#!/usr/bin/env bash
# metaseq175b: 128 nodes × 8 GPUs, 1024 ranks. Started once, on the first node.
# The source's `-t $NP` is the number of sets of hyper-parameters to train, 1 here, and not one of nodes.
# Its `-n 128` is ignored with --local, which trains on this node alone, and asks for 128 nodes whatever NP is
# without it; here -n is the run's own number of nodes.
# Its Slurm line submits a job of its own, returns at once, and that job idles 610 s after training. Here
# --salloc starts the same ranks by srun on this run's nodes and waits for them.
# The launcher skips in silence what it finds in its folder of an earlier run (`done training`, a train.log,
# anything in train.stderr.*): --checkpoints-dir is this run's alone.
# It drops the exit code of the training: `done training` in the log alone proves it.
# --no-wandb: where wandb is installed the launcher would log in to it.
set -euo pipefail
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export NCCL_IB_PCI_RELAXED_ORDERING=1
export NCCL_SOCKET_IFNAME=eth0
export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml
export OMPI_MCA_coll_hcoll_enable=0
export UCX_IB_PCI_RELAXED_ORDERING=on
export UCX_NET_DEVICES=eth0
set +u
. /shared/home/llmbench/cyclecloud-llm/opt-175b/nccl-env-var.sh
set -u
export SLURM_EXPORT_ENV=ALL,NCCL_SOCKET_IFNAME=eth0
set +u
if [ -e /etc/profile.d/modules.sh ]; then . /etc/profile.d/modules.sh; module load mpi/hpcx; fi
. /shared/home/llmbench/miniconda/etc/profile.d/conda.sh
conda activate fairseq
set -u

env SLURM_KILL_BAD_EXIT=1 opt-baselines --model-size 175b --benchmark -t 1 -g 8 -n 128 -p metaseq175b --salloc \
    --azure --checkpoints-dir /shared/run/runs/metaseq175b/checkpoints --no-wandb
