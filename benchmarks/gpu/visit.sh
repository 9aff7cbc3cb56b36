#!/usr/bin/env bash
# On a GPU machine without a network: install what prepare.sh made, and take the whole path.
#
#   benchmarks/gpu/visit.sh CARRIED RESULTS [options of walk.py]
#
#   PYTHON      the Python that has PyTorch, python3
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
(($# >= 2)) || {
  printf '%s\n' "usage: benchmarks/gpu/visit.sh CARRIED RESULTS [options of walk.py]" >&2
  exit 2
}
carried=$(realpath -- "$1") results=$2
shift 2
site=$(mktemp -d)
trap 'rm -rf -- "$site"' EXIT
# A Python of such machines need not have pip.
for wheel in "$carried"/wheels/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$site"; done
[[ ! -e $carried/slurm.tar.xz ]] || set -- --slurm "$carried/slurm.tar.xz" "$@"
PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} "$PYTHON" "$HERE/whole_path/walk.py" "$results" "$@"
