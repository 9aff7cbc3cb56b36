# shellcheck shell=bash
# NVIDIA's launcher of NeMo Megatron in the two versions that Azure and AWS use. It writes scripts; it trains nothing.
# shellcheck disable=SC2034,SC2154  # build.sh uses and sets the names

TITLE="the launcher of NeMo Megatron"
REPOSITORY=https://github.com/NVIDIA/NeMo-Megatron-Launcher
PIN=6cac482476df28b11528e80c7cd6ed38c49419c4
PINNED="22.06 (dd62d99c) and 22.09 (${PIN:0:8})"
CLONES=(src_22.06=dd62d99cac3007b46edc488f9e2f62519441a60f "src_22.09=$PIN")
PATHS=('/*')
TESTS=tests/real/test_nemo.py
PROGRAMS=()
FIRST=(setuptools wheel)

packages() { pip_install hydra-core omegaconf pyyaml requests tqdm zstandard; }

prepare() { :; }

try() {
  local clone
  for clone in "${CLONES[@]}"; do
    (cd "$INTO/${clone%%=*}" && "$VENV/bin/python" -W ignore main.py --help >/dev/null) || return 1
  done
}

# Its tests write a system of their own for each recipe.
environment() { echo "  nemo_launcher: {root: $INTO/src_22.09, python: $VENV/bin/python}"; }
