#!/bin/sh
# Installs PyTorch and the package from the checkout /opt/source into /opt/llmbench: what both images do while they are built.
# Usage: install.sh cpu | cuda
set -eu

case "$1" in
    cpu | cuda) ;;
    *) echo "TORCH is '$1': it can be cpu (about 0.8 GB) or cuda (about 5 GB)" >&2; exit 2 ;;
esac

# gcc and Python's headers are for the kernels that Triton compiles.
apt-get update -qq
apt-get install -y -qq --no-install-recommends ca-certificates gcc libc6-dev python3-dev python3-venv
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/llmbench
pip="/opt/llmbench/bin/pip install --no-cache-dir -c /opt/source/constraints.txt"
if [ "$1" = cpu ]; then
    $pip --index-url https://download.pytorch.org/whl/cpu torch
fi
$pip "/opt/source[torch,xdist]"
rm -rf /opt/source
