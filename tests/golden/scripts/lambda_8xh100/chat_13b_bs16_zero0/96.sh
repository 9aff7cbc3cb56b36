#!/usr/bin/env bash
# chat_13b_bs16_zero0: 96 nodes × 8 GPUs, 768 ranks. Started once, on the first node.
# 10 steps before the 100 timed ones, in up to 100 epochs, as in the logs of the source's published results; its
# script has no such steps now, and 10 epochs.
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

bash -c \
    'env | grep -E '"'"'^(PATH=|LD_LIBRARY_PATH=|PROJECT_PATH=|USER=|CUDA_|DS_|FI_|GLOO_|HF_|MAX_JOBS|NCCL_|OMP_|OMPI_|PYTORCH_|TORCH_|UCX_)'"'"' | grep -vE '"'"'^([^=]*(TOKEN|KEY|SECRET|PASSW))'"'"' > /shared/run/runs/chat_13b_bs16_zero0/deepspeed_env'

env --chdir=/home/ubuntu/shared/DeepSpeedExamples/applications/DeepSpeed-Chat/training \
    DS_ENV_FILE=/shared/run/runs/chat_13b_bs16_zero0/deepspeed_env deepspeed --hostfile="$LLMBENCH_HOSTFILE" \
    --master_addr "$LLMBENCH_FIRST_HOST" --master_port "$LLMBENCH_PORT" \
    /home/ubuntu/shared/DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning/main.py \
    --per_device_train_batch_size 16 --lr_scheduler_type cosine --gradient_accumulation_steps 1 --deepspeed \
    --max_steps 100 --max_seq_len 512 --learning_rate 1e-10 --weight_decay 0.1 --zero_stage 0 \
    --gradient_checkpointing --num_warmup_steps 10 --data_path Dahoas/rm-static Dahoas/full-hh-rlhf \
    --data_split 2,4,4 --seed 1234 --model_name_or_path facebook/opt-13b --data_output_path \
    /home/ubuntu/shared/.cache/data_files/opt-13b_step1 --num_train_epochs 100 --per_device_eval_batch_size 4 \
    --lora_dim 128 --lora_module_name decoder.layers.
