#!/usr/bin/env bash
# chat_350m_bs24_zero0: 1 node × 8 GPUs, 8 ranks. Started once, on the first node.
# 100 timed steps in up to 100 epochs, as when the source's results were published; since 2025-11-03 its script has
# 1000 steps in up to 10 epochs.
# --master_port is a free one, where the source's is 29500 or 12346, so that runs do not meet.
set -euo pipefail
export PROJECT_PATH=/home/ubuntu/shared
export USER=ubuntu
export OMPI_MCA_btl_tcp_if_include=eno1
export UCX_TLS=self,shm,tcp
export NCCL_P2P_LEVEL=NVL
export NCCL_NET_GDR_LEVEL=PIX
export NCCL_IB_HCA==mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8
export NCCL_IB_PCI_RELAXED_ORDERING=1
export NCCL_SOCKET_IFNAME=eno1
export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export MAX_JOBS=1

bash -c 'cat "$LLMBENCH_HOSTFILE" && echo'

env --chdir=/home/ubuntu/shared/DeepSpeedExamples/applications/DeepSpeed-Chat/training deepspeed \
    --hostfile="$LLMBENCH_HOSTFILE" --no_ssh_check --master_addr "$LLMBENCH_FIRST_HOST" \
    --master_port "$LLMBENCH_PORT" \
    /home/ubuntu/shared/DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning/main.py \
    --per_device_train_batch_size 24 --lr_scheduler_type cosine --gradient_accumulation_steps 1 --deepspeed \
    --max_steps 100 --max_seq_len 512 --learning_rate 1e-10 --weight_decay 0.1 --zero_stage 0 \
    --disable_dropout --num_warmup_steps 10 --data_path Dahoas/rm-static Dahoas/full-hh-rlhf \
    --data_split 2,4,4 --seed 1234 --model_name_or_path facebook/opt-350m \
    --data_output_path /home/ubuntu/shared/.cache/data_files/opt-350m_step1 --num_train_epochs 100 \
    --per_device_eval_batch_size 4
