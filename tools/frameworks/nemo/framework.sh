# shellcheck shell=bash
# NeMo 2 on the CPU: pytest_llmbench.engines.nemo.ranks.gpt, through pytest_llmbench.workloads.cuda_on_cpu.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE="NeMo 2"
# Its source is the package's, of the last release that has GPT: a checkout has nothing more that is needed.
REPOSITORY=''
PINNED="2.7.3 of the package index"
TESTS=tests/real/test_nemo.py
PROGRAMS=()
FIRST=(torch setuptools wheel)

packages() {
  # nemo_run is imported, and NeMo does not require it. NeMo requires newer releases of the others than
  # work together: the constraints hold them back.
  pip_install 'nemo_toolkit[llm]' nemo_run
}

prepare() { mkdir -p "$INTO/root"; }

try() {
  PYTHONPATH=$REPO "$VENV/bin/python" -W ignore -c '
from pytest_llmbench.workloads import cuda_on_cpu
cuda_on_cpu.install()
import tensorboard.backend.event_processing.event_accumulator
import pytest_llmbench.engines.nemo.ranks.gpt
' >"$INTO/try.log" 2>&1 || { tail -n 20 "$INTO/try.log" >&2 && return 1; }
}

environment() {
  cat <<YAML
  nemo_torchrun:
    root: $INTO/root
    python: $VENV/bin/python
    setup: ["export PATH=$VENV/bin:\$PATH"]
    env: {PYTHONPATH: $REPO, PYTHONWARNINGS: ignore, OMP_NUM_THREADS: "1"}
YAML
}
