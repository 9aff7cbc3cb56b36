#!/usr/bin/env bash
# Put all that the benchmarks of this folder need into one folder, for a GPU machine without a network.
#
#   benchmarks/gpu/prepare.sh DIR      for Linux on x86-64 with Python 3.12 and a PyTorch of CUDA 13 of its own
#
#   DIR/wheels          Python packages: python3 -m pip install --no-index --no-deps --target SITE DIR/wheels/*.whl
#   DIR/slurm.tar.xz    a Slurm for whole_path/walk.py (on Debian 12 as root; else left out)
#   DIR/nccl-tests      built for compute capability ARCH, without MPI, where NCCL_TESTS names a checkout of them
#
#   PYTHON      version of Python over there, 3.12
#   ARCH        compute capability, 90: H100 and H200
#   NCCL_TESTS  folder with a checkout of nccl-tests
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-3.12} ARCH=${ARCH:-90} NCCL_TESTS=${NCCL_TESTS:-}

PACKAGES=(
  pytest==9.2.0 pluggy iniconfig packaging pygments pytest-xdist execnet
  submitit==1.5.4 cloudpickle typing-extensions filelock
  pydantic==2.14.3 pydantic-core==2.50.4 annotated-types typing-inspection pyyaml nvidia-ml-py
  megatron-core==0.19.2
  hjson
)
# It has no wheel: its own builds kernels when they are first needed, which ours never needs.
DEEPSPEED=deepspeed==0.19.8
# What nvcc consists of, of one release of CUDA, and the NCCL that the tests are built against.
NVCC=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nccl-cu13==2.27.7
)

say() { printf '%s\n' "prepare: $*"; }
die() {
  printf '%s\n' "prepare: error: $*" >&2
  exit 2
}

download() {
  local to=$1
  shift
  python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$PYTHON" \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 -d "$to" "$@"
}

wheels() {
  download "$1" "${PACKAGES[@]}"
  # It has its requirements checked when it is built, unless it is told that they are there.
  DS_BUILD_OPS=0 python3 -m pip wheel -q --no-deps --no-build-isolation -w "$1" "$DEEPSPEED"
}

nccl_tests() {
  local to=$1 work=$2 cuda
  download "$work/nvcc" "${NVCC[@]}"
  for wheel in "$work"/nvcc/*.whl; do python3 -m zipfile -e "$wheel" "$work/cuda"; done
  cuda=$work/cuda/nvidia/cu13
  chmod -R u+x "$cuda/bin" "$cuda/nvvm/bin"
  ln -s libcudart.so.13 "$cuda/lib/libcudart.so"
  ln -s libnccl.so.2 "$work/cuda/nvidia/nccl/lib/libnccl.so"
  cp -r "$NCCL_TESTS" "$work/nccl-tests"
  make -s -j "$(nproc)" -C "$work/nccl-tests/src" build BUILDDIR="$to" MPI=0 CUDA_HOME="$cuda" CUDA_LIB="$cuda/lib" \
    NCCL_HOME="$work/cuda/nvidia/nccl" NVCC_GENCODE="-gencode=arch=compute_$ARCH,code=sm_$ARCH"
  find "$to" -mindepth 1 ! -name '*_perf' -delete
  strip "$to"/*_perf
}

main() {
  local to work
  (($# == 1)) && [[ $1 != -* ]] || die "usage: benchmarks/gpu/prepare.sh DIR"
  to=$(realpath -m -- "$1")
  [[ ! -e $to ]] || die "$to is there already: name a folder that is not"
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # its value now
  trap "rm -rf -- '$work'" EXIT
  mkdir -p "$to"
  wheels "$to/wheels"
  say "$(find "$to/wheels" -name '*.whl' | wc -l) wheels"
  if command -v apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
    "$HERE/../../tools/slurm/bundle.sh" "$work/slurm"
    mv "$work/slurm.tar.xz" "$to/"
  else
    say "no Slurm: that takes apt-get, as root"
  fi
  if [[ -n $NCCL_TESTS ]]; then
    nccl_tests "$to/nccl-tests" "$work"
    say "$(find "$to/nccl-tests" -name '*_perf' | wc -l) programs of nccl-tests"
  else
    say "no nccl-tests: NCCL_TESTS names no checkout"
  fi
  say "$(du -sm "$to" | cut -f1) MB in $to"
}

main "$@"
