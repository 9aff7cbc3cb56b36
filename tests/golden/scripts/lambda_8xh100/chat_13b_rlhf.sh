#!/usr/bin/env bash
# chat_13b_rlhf: 1 node × 8 GPUs, 8 ranks. Started once, on the first node.
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
    /home/ubuntu/shared/DeepSpeedExamples/applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py \
    --per_device_train_batch_size 16 --lr_scheduler_type cosine --gradient_accumulation_steps 1 --deepspeed \
    --max_steps 50 --per_device_mini_train_batch_size 16 --max_prompt_seq_len 256 --max_answer_seq_len 256 \
    --actor_learning_rate 1e-10 --critic_learning_rate 1e-10 --actor_zero_stage 3 --critic_zero_stage 3 \
    --actor_gradient_checkpointing --disable_actor_dropout --num_warmup_steps 100 --data_path Dahoas/rm-static \
    Dahoas/full-hh-rlhf Dahoas/synthetic-instruct-gptj-pairwise yitingxie/rlhf-reward-datasets \
    --data_split 2,4,4 --seed 1234 \
    --actor_model_name_or_path /home/ubuntu/shared/.cache/huggingface/transformers/models--facebook--opt-13b/snapshots/e515202d1e7750da62d245fbccb2723b9c1790f5 \
    --critic_model_name_or_path /home/ubuntu/shared/.cache/huggingface/transformers/models--facebook--opt-350m/snapshots/08ab08cc4b72ff5593870b5d527cf4230323703c \
    --data_output_path /home/ubuntu/shared/.cache/data_files/opt-13b_step3 --num_padding_at_beginning 1 \
    --generation_batch_numbers 1 --ppo_epochs 1 --num_train_epochs 5 --enable_hybrid_engine \
    --inference_tp_size 1 --actor_lora_dim 128 --actor_lora_module_name decoder.layers.
