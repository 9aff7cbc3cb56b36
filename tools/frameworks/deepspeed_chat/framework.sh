# shellcheck shell=bash
# Lambda's fork of DeepSpeed-Chat on the CPU: its own, unchanged main.py of each step, started by on_cpu.py.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE=DeepSpeed-Chat
REPOSITORY=https://github.com/LambdaLabsML/DeepSpeedExamples
PIN=7770cecf4f2235d336ddcbb0fccf962643b8ea95
PINNED="main of 2025-11-21 (${PIN:0:8})"
# Not its results and pictures, which are 80 MB.
PATHS=('/applications/DeepSpeed-Chat/training' '!/applications/DeepSpeed-Chat/training/output'
  '!/applications/DeepSpeed-Chat/training/results' '!/applications/DeepSpeed-Chat/training/imgs')
TESTS=tests/real/test_deepspeed_chat.py
PROGRAMS=(g++)
FIRST=(torch setuptools wheel ninja numpy)

packages() {
  pip_install accelerate datasets protobuf pydantic pyyaml sentencepiece tensorboard tokenizers transformers
  step "DeepSpeed, with its kernels for the CPU"
  # Compiled here once and for all, into the package: else every session might compile them again, a minute or two. The
  # three are what a training on the CPU loads.
  DS_ACCELERATOR=cpu DS_BUILD_OPS=0 DS_BUILD_SHM_COMM=1 DS_BUILD_FUSED_ADAM=1 DS_BUILD_CPU_ADAM=1 PATH=$VENV/bin:$PATH \
    pip_install --no-build-isolation --no-cache-dir --no-binary deepspeed deepspeed
}

prepare() {
  local chat=$SOURCE/applications/DeepSpeed-Chat
  rm -rf "$DATA"
  mkdir -p "$DATA/.cache"
  HF_HUB_OFFLINE=1 "$VENV/bin/python" "$HERE/deepspeed_chat/tiny.py" "$DATA"
  # The one place where main.py looks for --data_path local/jsonfile.
  ln -sfn "$DATA/text" "$chat/data"
  grep -qx /applications/DeepSpeed-Chat/data "$SOURCE/.git/info/exclude" ||
    echo /applications/DeepSpeed-Chat/data >>"$SOURCE/.git/info/exclude"
}

try() {
  DS_ACCELERATOR=cpu PATH=$VENV/bin:$PATH "$VENV/bin/python" -c '
import datasets, deepspeed, transformers
from deepspeed.git_version_info import installed_ops as compiled
lacking = {"deepspeed_shm_comm", "fused_adam", "cpu_adam"} - {name for name, there in compiled.items() if there}
assert not lacking, f"these kernels are not compiled: {lacking}"
'
}

environment() {
  cat <<YAML
  deepspeed_chat:
    root: $SOURCE
    data: $DATA
    python: $VENV/bin/python
    paths:
      on_cpu: $HERE/deepspeed_chat/on_cpu.py
      opt_350m: $DATA/opt
      actor: $DATA/opt
      critic: $DATA/opt
    setup: ["export PATH=$VENV/bin:\$PATH"]
    env:
      PYTHONPATH: $REPO
      PROJECT_PATH: $DATA
      USER: nobody
      DS_ACCELERATOR: cpu
      HF_HUB_OFFLINE: "1"
      OMP_NUM_THREADS: "1"
YAML
}
