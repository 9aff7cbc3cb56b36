#!/usr/bin/env bash
# aws_gpt3_175b: 16 nodes × 8 GPUs, 128 ranks. Started once, on the first node.
# The launcher's configuration logs every 10th step, so that 5 steps leave none; log_every_n_steps is 1 here.
# The source waits 10 s between its two steps of Slurm, which cannot share nodes; here they can.
# It goes on when the training fails (set +e); here that ends the script.
set -euo pipefail
export FI_PROVIDER=efa
export FI_EFA_USE_DEVICE_RDMA=1
export RDMAV_FORK_SAFE=1
export FI_EFA_FORK_SAFE=1
export FI_EFA_ENABLE_SHM_TRANSFER=0
export FI_LOG_LEVEL=1
export NCCL_DEBUG=INFO
export NCCL_PROTO=simple
export NCCL_TOPO_FILE=/opt/bignlp/bignlp-scripts/tools/csp/aws/topo.xml

srun --overlap --mem=0 --kill-on-bad-exit=1 --unbuffered --cpu-bind=none --nodes=1 \
    --nodelist="$LLMBENCH_FIRST_HOST" --ntasks=1 --ntasks-per-node=1 --gpus-per-node=8 \
    --container-image=/apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh \
    --container-mounts=/shared/run/runs/aws_gpt3_175b:/shared/run/runs/aws_gpt3_175b,/fsx:/fsx,/dev/infiniband/uverbs0:/dev/infiniband/uverbs0,/dev/infiniband/uverbs1:/dev/infiniband/uverbs1,/dev/infiniband/uverbs2:/dev/infiniband/uverbs2,/dev/infiniband/uverbs3:/dev/infiniband/uverbs3 \
    --container-workdir=/shared/run/runs/aws_gpt3_175b --container-mount-home env \
    --chdir=/opt/bignlp/bignlp-scripts HYDRA_FULL_ERROR=1 BIGNLP_DEBUG=1 python3 \
    /opt/bignlp/bignlp-scripts/main.py training=gpt3/175b cluster_type=bcm \
    bignlp_path=/opt/bignlp/bignlp-scripts data_dir=/fsx/data/the_pile_gpt3 \
    base_results_dir=/shared/run/runs/aws_gpt3_175b/results \
    'container_mounts=["/fsx:/fsx","/dev/infiniband/uverbs0:/dev/infiniband/uverbs0","/dev/infiniband/uverbs1:/dev/infiniband/uverbs1","/dev/infiniband/uverbs2:/dev/infiniband/uverbs2","/dev/infiniband/uverbs3:/dev/infiniband/uverbs3"]' \
    container=/apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh \
    env_vars.NCCL_TOPO_FILE=/opt/bignlp/bignlp-scripts/tools/csp/aws/topo.xml env_vars.NCCL_DEBUG=INFO \
    env_vars.NCCL_PROTO=simple cluster.gpus_per_node=8 training.run.name=gpt3_175b \
    training.run.time_limit=02:00:00 training.trainer.num_nodes=16 training.trainer.devices=8 \
    training.trainer.max_steps=5 training.trainer.log_every_n_steps=1 \
    training.exp_manager.resume_if_exists=False training.model.micro_batch_size=2 \
    training.model.global_batch_size=2048 training.model.tensor_model_parallel_size=8 \
    training.model.pipeline_model_parallel_size=8 'stages=["training"]' ++cluster.stderr_to_stdout=True \
    'cluster.srun_args=["--container-mount-home"]' ++cluster.nodes=16 \
    training.trainer.enable_checkpointing=False training.trainer.val_check_interval=5 \
    training.exp_manager.create_checkpoint_callback=False \
    training.model.tokenizer.vocab_file=/fsx/data/bpe/vocab.json \
    training.model.tokenizer.merge_file=/fsx/data/bpe/merges.txt \
    training.model.data.index_mapping_dir=/shared/run/runs/aws_gpt3_175b/results/index_mapping

env SLURM_GPUS_PER_NODE=8 bash \
    -c 'set -e
sed -i -e '"'"'s|^srun |/usr/bin/time srun |'"'"' -e '"'"'s|/opt/bignlp/bignlp-scripts:/opt/bignlp/bignlp-scripts,||'"'"' /shared/run/runs/aws_gpt3_175b/results/gpt3_175b/bignlp-gpt3_175b_submission.sh
echo "BEGIN_TRAINING: $(LC_ALL=C date -u)"
. /shared/run/runs/aws_gpt3_175b/results/gpt3_175b/bignlp-gpt3_175b_submission.sh
echo "END_TRAINING: $(LC_ALL=C date -u)"'
