#!/usr/bin/env bash
# azure_gpt3_175b: 32 nodes × 8 GPUs, 256 ranks. Started once, on the first node.
# The source has people edit the launcher's files. Here overrides do it, and no file is changed:
# run_data_preparation and run_training are in conf/config.yaml, where it speaks of conf/cluster/bcm.yaml.
# Its example is named gpt3_126m-1n-tp1-pp1-mbs1 and has a micro batch of 4; a name here is the run's own,
# since the launcher writes its script into its own folder over any other of that name.
# debug=True keeps the launcher from submitting: its script runs on this run's nodes instead of a job.
# The script's own launcher drops the exit code of the training: only the log proves that it was completed.
set -euo pipefail
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export NCCL_IB_PCI_RELAXED_ORDERING=1
export NCCL_SOCKET_IFNAME=eth0
export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml
export OMPI_MCA_coll_hcoll_enable=0
export UCX_IB_PCI_RELAXED_ORDERING=on
export UCX_NET_DEVICES=eth0
export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml
export UCX_IB_PCI_RELAXED_ORDERING=auto
export NCCL_IB_PCI_RELAXED_ORDERING=2
export NCCL_IB_TIMEOUT=22

env --chdir=/shared/ngc_scripts/bignlp-scripts HYDRA_FULL_ERROR=1 python3 \
    /shared/ngc_scripts/bignlp-scripts/main.py training=gpt3/175b cluster_type=bcm \
    bignlp_path=/shared/ngc_scripts/bignlp-scripts data_dir=/shared/data/NeMo \
    base_results_dir=/shared/run/runs/azure_gpt3_175b/results \
    'container_mounts=["/opt/microsoft:/opt/microsoft"]' \
    container=nvcr.io/ea-bignlp/bignlp-training:22.06-hotfix.01-py3 \
    env_vars.NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml env_vars.UCX_IB_PCI_RELAXED_ORDERING=auto \
    env_vars.NCCL_IB_PCI_RELAXED_ORDERING=2 env_vars.NCCL_IB_TIMEOUT=22 cluster.gpus_per_node=8 \
    training.run.name=run-azure_gpt3_175b training.run.time_limit=10:00:00 training.trainer.num_nodes=32 \
    training.trainer.devices=8 training.trainer.max_steps=200 training.trainer.log_every_n_steps=1 \
    training.exp_manager.resume_if_exists=False training.model.micro_batch_size=2 \
    training.model.global_batch_size=1536 training.model.tensor_model_parallel_size=8 \
    training.model.pipeline_model_parallel_size=8 debug=True run_data_preparation=False run_training=True \
    run_conversion=False run_finetuning=False run_evaluation=False \
    training.model.activations_checkpoint_num_layers=0 \
    'training.model.data.data_prefix=[0.5,"/shared/data/NeMo/my-gpt3_00_text_document",0.5,"/shared/data/NeMo/my-gpt3_01_text_document"]'

env SLURM_GPUS_PER_NODE=8 bash \
    -c 'set -e
mv /shared/ngc_scripts/bignlp-scripts/bignlp/train_scripts/run-azure_gpt3_175b.sh /shared/run/runs/azure_gpt3_175b/train.sh
. /shared/run/runs/azure_gpt3_175b/train.sh'
