#!/usr/bin/env bash
# For metaseq on GPUs: compile Apex's modules that it asks for and its own two softmax kernels, all at once: two minutes
# on 32 cores with CUDA 13.0.
#
#   tools/frameworks/metaseq/kernels.sh METASEQ APEX INTO
#
#   METASEQ   metaseq's source; its kernels are put where it imports them from
#   APEX      a checkout of https://github.com/NVIDIA/apex, such as 6424da3b; it is not changed
#   INTO      a folder, for PYTHONPATH: gets the package apex and its modules; INTO/build/*.log has the compiler's words
#
#   PYTHON                 the Python that has PyTorch, python3
#   TORCH_CUDA_ARCH_LIST   compute capability, 9.0: H100 and H200
#   MAX_JOBS               compilers for each of the five, 4
set -euo pipefail
(($# == 3)) || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
METASEQ=$(realpath -- "$1") APEX=$(realpath -- "$2") INTO=$(realpath -m -- "$3")
PYTHON=${PYTHON:-python3}
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-9.0} MAX_JOBS=${MAX_JOBS:-4}
CUDA_HOME=${CUDA_HOME:-$(dirname -- "$(dirname -- "$(realpath -- "$(command -v nvcc)")")")}
export CUDA_HOME CPLUS_INCLUDE_PATH=$CUDA_HOME/include LDFLAGS="-L$CUDA_HOME/lib64 -L$CUDA_HOME/lib"
KERNELS=metaseq/modules/megatron/fused_kernels
mkdir -p "$INTO/build"

# Build some of the modules of a setup.py, which would build all of its own one after another, in a copy of its source.
build() {
  local name=$1 source=$2 argument=$3 began=$SECONDS
  shift 3
  rm -rf "${INTO:?}/build/$name" && cp -r "$source" "$INTO/build/$name" && cd "$INTO/build/$name"
  "$PYTHON" - "$@" <<'PYTHON'
import re
import sys

text = open("setup.py").read()
keep = f"for _ in (globals().get('ext_modules'), globals().get('extension_modules')):\n"
keep += f"    if _: _[:] = [one for one in _ if one.name in {sys.argv[1:]!r}]\n"
at = re.search(r"^(def do_setup|setup\()", text, re.M).start()
open("setup.py", "w").write(text[:at] + keep + text[at:])
PYTHON
  # shellcheck disable=SC2086  # an option, or none
  APEX_CPP_EXT=1 APEX_CUDA_EXT=1 APEX_DEPRECATED_FUSED_ADAM=1 \
    "$PYTHON" setup.py $argument build_ext --inplace >"$INTO/build/$name.log" 2>&1 ||
    { printf 'kernels: %s does not compile: see %s\n' "$name" "$INTO/build/$name.log" >&2 && return 1; }
  printf 'kernels: %s in %s s\n' "$name" "$((SECONDS - began))"
}

pids=()
build norm "$APEX" '' fused_layer_norm_cuda & pids+=($!)
build multi_tensor "$APEX" '' amp_C apex_C & pids+=($!)
build adam "$APEX" '' fused_adam_cuda & pids+=($!)
for kernel in scaled_upper_triang_masked_softmax_cuda scaled_masked_softmax_cuda; do
  build "$kernel" "$METASEQ" --no_apex "${KERNELS//\//.}.$kernel" & pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
cp -r "$APEX/apex" "$INTO"/build/{norm,multi_tensor,adam}/*.so "$INTO/"
cp "$INTO"/build/scaled_*/"$KERNELS"/*_cuda*.so "$METASEQ/$KERNELS/"
