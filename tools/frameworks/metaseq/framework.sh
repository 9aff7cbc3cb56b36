# shellcheck shell=bash
# metaseq on the CPU: its own, unchanged training program and launcher, with site/sitecustomize.py for what they expect
# of older libraries, pytest_llmbench.workloads.cuda_on_cpu for CUDA, and train_python for what the launcher asks of it.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE=metaseq
REPOSITORY=https://github.com/facebookresearch/metaseq
PIN=f7ffa5fd61cf90f498a36d365c13dd7f1a912ff7
PINNED="main of 2023-06-08 (${PIN:0:8})"
PATHS=('/metaseq' '/setup.py' '/README.md' '/third_party')
TESTS=tests/real/test_metaseq.py
PROGRAMS=(g++)
FIRST=(torch setuptools wheel numpy cython ninja)

packages() {
  # Neither the metaseq nor the apex of the package index: those are other projects. fairscale's own build needs torch.
  pip_install --no-build-isolation fairscale
  pip_install boto3 cffi dataclasses-json editdistance hydra-core iopath omegaconf packaging pydantic pyyaml regex \
    sacrebleu scikit-learn sentencepiece tensorboard tokenizers tqdm
}

prepare() {
  # Two modules in Cython; its CUDA kernels are left out.
  (cd "$SOURCE" && PATH=$VENV/bin:$PATH python setup.py --no_megatron --no_apex build_ext --inplace) \
    >"$INTO/compile.log" 2>&1 || die 1 "its Cython modules do not compile: see $INTO/compile.log"
  cat >"$VENV/bin/opt-baselines" <<PYTHON
#!$VENV/bin/python
from metaseq.launcher.opt_baselines import cli_main

cli_main()
PYTHON
  chmod +x "$VENV/bin/opt-baselines"
}

try() {
  PYTHONPATH=$HERE/metaseq/site:$SOURCE:$REPO "$VENV/bin/python" -W ignore -c '
from pytest_llmbench.workloads import cuda_on_cpu
cuda_on_cpu.install()
import metaseq.cli.train, metaseq.data.token_block_utils_fast, metaseq.launcher.opt_baselines
' >"$INTO/try.log" 2>&1 || { tail -n 20 "$INTO/try.log" >&2 && return 1; }
}

environment() {
  cat <<YAML
  metaseq:
    root: $SOURCE
    python: $VENV/bin/python
    paths: {train_python: $HERE/metaseq/train_python}
    setup: ["export PATH=$VENV/bin:\$PATH"]
    env:
      PYTHONPATH: $HERE/metaseq/site:$SOURCE:$REPO
      USER: nobody
      OMP_NUM_THREADS: "1"
YAML
}
