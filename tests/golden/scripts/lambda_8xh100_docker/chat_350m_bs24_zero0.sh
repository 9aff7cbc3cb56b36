#!/usr/bin/env bash
# chat_350m_bs24_zero0: 1 node × 8 GPUs, 8 ranks. Started once, on the first node.
# 100 timed steps in up to 100 epochs, as when the source's results were published; since 2025-11-03 its script has
# 1000 steps in up to 10 epochs.
# --master_port is a free one, where the source's is 29500 or 12346, so that runs do not meet.
set -euo pipefail
export PROJECT_PATH=/workspace
export USER=root
export HOME=/workspace/.cache/home
export TORCH_EXTENSIONS_DIR=/workspace/.cache/torch_extensions
export CUDA_HOME=/usr/local/cuda
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_DEBUG=INFO
export MAX_JOBS=1

bash -c 'cat "$LLMBENCH_HOSTFILE" && echo'

docker run --rm --gpus=all --network=host --ipc=host --ulimit=memlock=-1 --ulimit=stack=67108864 \
    --user "$(id -u):$(id -g)" \
    --volume /shared/run/runs/chat_350m_bs24_zero0:/shared/run/runs/chat_350m_bs24_zero0 \
    --volume /srv/nfs/staging/.cache:/workspace/.cache \
    --volume /srv/nfs/staging/DeepSpeedExamples:/workspace/DeepSpeedExamples --env CUDA_HOME --env HOME \
    --env LLMBENCH_FIRST_HOST --env LLMBENCH_HOSTFILE --env LLMBENCH_HOSTS --env LLMBENCH_PORT --env MAX_JOBS \
    --env NCCL_DEBUG --env PROJECT_PATH --env TORCH_EXTENSIONS_DIR --env TORCH_NCCL_ASYNC_ERROR_HANDLING \
    --env USER --workdir /shared/run/runs/chat_350m_bs24_zero0 \
    deepspeed-training:cuda11.8.0-cudnn8-devel-ubuntu22.04 env \
    --chdir=/workspace/DeepSpeedExamples/applications/DeepSpeed-Chat/training deepspeed \
    --hostfile="$LLMBENCH_HOSTFILE" --no_ssh_check --master_addr "$LLMBENCH_FIRST_HOST" \
    --master_port "$LLMBENCH_PORT" \
    /workspace/DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning/main.py \
    --per_device_train_batch_size 24 --lr_scheduler_type cosine --gradient_accumulation_steps 1 --deepspeed \
    --max_steps 100 --max_seq_len 512 --learning_rate 1e-10 --weight_decay 0.1 --zero_stage 0 \
    --disable_dropout --num_warmup_steps 10 --data_path Dahoas/rm-static Dahoas/full-hh-rlhf \
    --data_split 2,4,4 --seed 1234 --model_name_or_path facebook/opt-350m \
    --data_output_path /workspace/.cache/data_files/opt-350m_step1 --num_train_epochs 100 \
    --per_device_eval_batch_size 4
