#!/usr/bin/env bash
# nlp175b: 96 nodes × 4 GPUs, 384 ranks. Started once, on the first node.
# The source's scripts give --save too; no run within the time limit reaches its 1500 iterations.
# The source resolves the first host's InfiniBand name (host + i) by nslookup; here the rendezvous does.
set -euo pipefail
export CUDA_VISIBLE_DEVICES=0,1,2,3
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_IB_TIMEOUT=50
export UCX_RC_TIMEOUT=4s
export NCCL_IB_RETRY_CNT=10
export NCCL_SOCKET_IFNAME=ib0
export GLOO_SOCKET_IFNAME=ib0
export NCCL_DEBUG=INFO
export TORCHELASTIC_ERROR_FILE=/tmp/torch-elastic-error.json
export DS_BUILD_OPS=1
set +u
module purge
module load Stages/2024 StdEnv/2024 GCC/12.3.0 OpenMPI/4.1.5 Python/3.11.3 CUDA/12 PyTorch/2.1.2
. /p/project/llmbench/env/bin/activate
set -u

srun --overlap --mem=0 --kill-on-bad-exit=1 --unbuffered --cpu-bind=none --nodes=96 \
    --nodelist="$LLMBENCH_HOSTS" --ntasks=96 --ntasks-per-node=1 --gpus-per-node=4 sh \
    -c 'if [ -n "${LLMBENCH_LABEL:-}" ] && [ "${SLURM_LOCALID:-0}" = 0 ]; then echo "$LLMBENCH_LABEL host=${SLURMD_NODENAME:-$(uname -n)} #"; fi; exec "$@"' \
    sh env --chdir=/p/project/llmbench/megatron-lm python -u -m torch.distributed.run --nproc_per_node=4 \
    --nnodes=96 --rdzv_endpoint="$LLMBENCH_FIRST_HOST"i:"$LLMBENCH_PORT" --rdzv_backend=c10d --max_restarts=0 \
    --tee 3 /p/project/llmbench/megatron-lm/pretrain_gpt.py --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 8 --num-layers 96 --hidden-size 12288 --num-attention-heads 96 \
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 96 \
    --attention-dropout 0.1 --hidden-dropout 0.1 --position-embedding-type rope --sequence-parallel \
    --use-distributed-optimizer --optimizer adam --adam-beta1 0.9 --adam-beta2 0.999 --adam-eps 1e-08 \
    --lr 0.0001 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --fp16 --train-samples 300000000 \
    --tokenizer-type GPT2BPETokenizer --vocab-file /p/project/llmbench/data/gpt2-vocab.json \
    --merge-file /p/project/llmbench/data/gpt2-merges.txt --loss-scale-window 500 --hysteresis 2 \
    --min-loss-scale 1.0 --initial-loss-scale 4096 --seed 42 --use-flash-attn --min-lr 1e-05 \
    --lr-decay-samples 126953125 --lr-warmup-samples 216320 --log-interval 10 --save-interval 1500 \
    --eval-interval 1000 --eval-iters 5 --tensorboard-dir /shared/run/runs/nlp175b/tensorboard \
    --tensorboard-queue-size 5 --log-timers-to-tensorboard --log-batch-size-to-tensorboard \
    --log-validation-ppl-to-tensorboard --split 7,3,1 --distributed-backend nccl \
    --data-path /p/project/llmbench/data/oscar_text_document --init-method-std 0.0048 --recompute-activations \
    --recompute-granularity selective
