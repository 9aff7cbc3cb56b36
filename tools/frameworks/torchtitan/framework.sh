# shellcheck shell=bash
# torchtitan on the CPU, through pytest_llmbench.workloads.cuda_on_cpu --no-cuda.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE=torchtitan
# Later versions have attention without a backward pass on CPUs.
REPOSITORY=''
PINNED="0.2.2 of the package index"
TESTS=tests/real/test_torchtitan.py
PROGRAMS=()
FIRST=(torch setuptools wheel)

packages() {
  # It imports triton, which PyTorch for the CPU leaves out.
  pip_install torchtitan triton
}

prepare() {
  "$VENV/bin/python" "$HERE/torchtitan/make_data.py" "$DATA"
}

try() {
  PYTHONPATH=$REPO "$VENV/bin/python" -W ignore -c '
import torchtitan.train
import pytest_llmbench.workloads.cuda_on_cpu
' >"$INTO/try.log" 2>&1 || { tail -n 20 "$INTO/try.log" >&2 && return 1; }
}

environment() {
  cat <<YAML
  torchtitan:
    data: $DATA
    python: $VENV/bin/python
    env: {PYTHONPATH: $REPO, PYTHONWARNINGS: ignore, OMP_NUM_THREADS: "1"}
YAML
}
