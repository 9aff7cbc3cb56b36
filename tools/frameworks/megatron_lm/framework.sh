# shellcheck shell=bash
# Megatron-LM on the CPU. Its own, unchanged pretrain_gpt.py runs through pytest_llmbench.workloads.cuda_on_cpu.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE=Megatron-LM
REPOSITORY=https://github.com/NVIDIA/Megatron-LM
# The last release that runs with Python 3.11.
PIN=55ac7082517c3878ae653c07c09c534b8aed49f6
PINNED="core_v0.16.1 (${PIN:0:8})"
PATHS=('/*' '!/tests' '!/docs' '!/images')
TESTS=tests/real/test_megatron_lm.py
PROGRAMS=(g++ make)
FIRST=(torch setuptools wheel numpy)

packages() {
  # triton is imported even where nothing uses it, and PyTorch for the CPU does not bring it. The tokenizer library of
  # transformers 5 is another one. pydantic and PyYAML are for pytest_llmbench.
  pip_install einops packaging pybind11 pydantic pyyaml regex sentencepiece six tensorboard tiktoken transformers triton
}

prepare() {
  # Megatron-LM's makefile asks python3-config what a module's file is called, which may be another Python's.
  cat >"$VENV/bin/python3-config" <<SHELL
#!/bin/sh
exec $VENV/bin/python -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
SHELL
  chmod +x "$VENV/bin/python3-config"
  # Else the first training compiles it.
  PATH=$VENV/bin:$PATH make --silent -C "$SOURCE/megatron/core/datasets"
}

try() {
  (cd "$SOURCE" && "$VENV/bin/python" -W ignore -c '
import megatron.core.datasets.helpers_cpp, pydantic, sentencepiece, tiktoken, transformers, triton, yaml
')
}

environment() {
  cat <<YAML
  megatron_lm:
    root: $SOURCE
    python: $VENV/bin/python
    setup: ["export PATH=$VENV/bin:\$PATH"]
    env: {PYTHONPATH: $REPO, CUDA_DEVICE_MAX_CONNECTIONS: "1", OMP_NUM_THREADS: "1"}
YAML
}
