#!/usr/bin/env bash
# Put all that the benchmarks of this folder need into one folder, for a GPU machine without a network.
#
#   benchmarks/gpu/prepare.sh DIR      for Linux on x86-64 with Python 3.12 and a PyTorch of CUDA 13 of its own
#
#   DIR/wheels          the package and all that it, Megatron-Core and DeepSpeed need, but PyTorch and what that brings
#   DIR/slurm.tar.xz    a Slurm for whole_path/walk.py (on Debian 12 as root; else left out)
#   DIR/nccl-tests      built for compute capability ARCH, without MPI, where NCCL_TESTS names a checkout of them
#
#   PYTHON      version of Python over there, 3.12
#   ARCH        compute capability, 90: H100 and H200
#   NCCL_TESTS  folder with a checkout of nccl-tests
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-3.12} ARCH=${ARCH:-90} NCCL_TESTS=${NCCL_TESTS:-}

# Beside the package; the resolver finds what these need.
PACKAGES=(megatron-core==0.19.2 deepspeed==0.19.8)
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
  python3 -m pip download -q --only-binary=:all: --implementation cp --python-version "$PYTHON" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_12_x86_64 --platform linux_x86_64 -d "$to" "$@"
}

# A wheel that has a name and nothing in it: the resolver takes it for the PyTorch of the GPU machine.
stub() {
  python3 - "$1" <<'PYTHON'
import sys
import zipfile

with zipfile.ZipFile(f"{sys.argv[1]}/torch-2.11.0+there-py3-none-any.whl", "w") as wheel:
    for name, text in {
        "METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+there\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }.items():
        wheel.writestr(f"torch-2.11.0+there.dist-info/{name}", text)
PYTHON
}

wheels() {
  local to=$1 work=$2 package source
  python3 -m pip wheel -q --no-deps -w "$to" "$HERE/../.."
  mkdir "$work/built"
  stub "$work/built"
  # DeepSpeed has no wheel: its own builds kernels when they are first needed, which ours never needs.
  for package in "${PACKAGES[@]}"; do
    [[ $package != deepspeed* ]] ||
      DS_BUILD_OPS=0 python3 -m pip wheel -q --no-deps --no-build-isolation -w "$work/built" "$package"
  done
  source=$(echo "$to"/pytest_llmbench-*.whl)
  download "$to" --find-links "$work/built" torch==2.11.0+there "${PACKAGES[@]}" "pytest-llmbench[xdist] @ file://$source"
  rm "$to"/torch-2.11.0+there-*.whl
}

nccl_tests() {
  local to=$1 work=$2 cuda
  download "$work/nvcc" --no-deps "${NVCC[@]}"
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
  wheels "$to/wheels" "$work"
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
