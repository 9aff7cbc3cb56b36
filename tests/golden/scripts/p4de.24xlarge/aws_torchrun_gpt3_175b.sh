#!/usr/bin/env bash
# aws_torchrun_gpt3_175b: 16 nodes × 8 GPUs, 128 ranks. Started once, on the first node.
# In the source every rank edits the model's configuration file in the image (sed -i) while others read it: here
# a copy is edited once, in the run's folder.
# Its WORLD_SIZE is the number of nodes; torchrun sets it to the number of ranks, which is what NeMo reads.
# Its configuration logs every 10th step (log_every_n_steps); here every step is.
# Its `/usr/bin/time srun` is replaced by the dates that nemo-megatron-v2.sbatch prints around the training.
set -euo pipefail
export FI_PROVIDER=efa
export FI_EFA_USE_DEVICE_RDMA=1
export RDMAV_FORK_SAFE=1
export FI_EFA_FORK_SAFE=1
export FI_EFA_ENABLE_SHM_TRANSFER=0
export FI_LOG_LEVEL=1
export NCCL_DEBUG=INFO
export NCCL_PROTO=simple
export NCCL_TOPO_FILE=/usr/local/share/aws-ofi-nccl/xml/p4d-24xl-topo.xml
export PYTHONPATH=/opt/bignlp/NeMo

srun --overlap --mem=0 --kill-on-bad-exit=1 --unbuffered --cpu-bind=none --nodes=1 \
    --nodelist="$LLMBENCH_FIRST_HOST" --ntasks=1 --ntasks-per-node=1 --gpus-per-node=8 \
    --container-image=/apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh \
    --container-mounts=/shared/run/runs/aws_torchrun_gpt3_175b:/shared/run/runs/aws_torchrun_gpt3_175b,/fsx:/fsx,/dev/infiniband/uverbs0:/dev/infiniband/uverbs0,/dev/infiniband/uverbs1:/dev/infiniband/uverbs1,/dev/infiniband/uverbs2:/dev/infiniband/uverbs2,/dev/infiniband/uverbs3:/dev/infiniband/uverbs3 \
    --container-workdir=/shared/run/runs/aws_torchrun_gpt3_175b --container-mount-home bash \
    -c 'mkdir -p /shared/run/runs/aws_torchrun_gpt3_175b/config && sed -e '"'"'s/training\.//g'"'"' -e '"'"'s|${data_dir}|/fsx/data/the_pile_gpt3|g'"'"' /opt/bignlp/bignlp-scripts/conf/training/gpt3/175b.yaml > /shared/run/runs/aws_torchrun_gpt3_175b/config/175b.yaml'

bash -c 'echo "BEGIN_TRAINING: $(LC_ALL=C date -u)"'

srun --overlap --mem=0 --kill-on-bad-exit=1 --unbuffered --cpu-bind=none --nodes=16 \
    --nodelist="$LLMBENCH_HOSTS" --ntasks=16 --ntasks-per-node=1 --gpus-per-node=8 \
    --container-image=/apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh \
    --container-mounts=/shared/run/runs/aws_torchrun_gpt3_175b:/shared/run/runs/aws_torchrun_gpt3_175b,/fsx:/fsx,/dev/infiniband/uverbs0:/dev/infiniband/uverbs0,/dev/infiniband/uverbs1:/dev/infiniband/uverbs1,/dev/infiniband/uverbs2:/dev/infiniband/uverbs2,/dev/infiniband/uverbs3:/dev/infiniband/uverbs3 \
    --container-workdir=/shared/run/runs/aws_torchrun_gpt3_175b --container-mount-home sh \
    -c 'if [ -n "${LLMBENCH_LABEL:-}" ] && [ "${SLURM_LOCALID:-0}" = 0 ]; then echo "$LLMBENCH_LABEL host=${SLURMD_NODENAME:-$(uname -n)} #"; fi; exec "$@"' \
    sh env --chdir=/opt/bignlp/NeMo HYDRA_FULL_ERROR=1 python3 -u -m torch.distributed.run --nproc_per_node=8 \
    --nnodes=16 --rdzv_endpoint="$LLMBENCH_FIRST_HOST":"$LLMBENCH_PORT" --rdzv_backend=c10d --max_restarts=0 \
    /opt/bignlp/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \
    --config-path=/shared/run/runs/aws_torchrun_gpt3_175b/config --config-name=175b.yaml \
    run.results_dir=/shared/run/runs/aws_torchrun_gpt3_175b/results \
    exp_manager.explicit_log_dir=/shared/run/runs/aws_torchrun_gpt3_175b/results \
    trainer.enable_checkpointing=False trainer.val_check_interval=40 \
    exp_manager.create_checkpoint_callback=False trainer.num_nodes=16 trainer.devices=8 trainer.max_steps=40 \
    trainer.log_every_n_steps=1 exp_manager.resume_if_exists=False model.micro_batch_size=2 \
    model.global_batch_size=2048 model.tensor_model_parallel_size=8 model.pipeline_model_parallel_size=8 \
    model.tokenizer.vocab_file=/fsx/data/bpe/vocab.json model.tokenizer.merge_file=/fsx/data/bpe/merges.txt \
    model.data.index_mapping_dir=/shared/run/runs/aws_torchrun_gpt3_175b/index_mapping

bash -c 'echo "END_TRAINING: $(LC_ALL=C date -u)"'
