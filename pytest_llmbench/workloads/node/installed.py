"""Installed packages of the interpreter that runs this, imported or not. Python alone is needed, 3.8 or later.

The source of this module is also run as a program by interpreters of other environments: see `provenance`.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

MARK = "LLMBENCH_INSTALLED "
# By the names under which they are distributed.
PACKAGES = (
    "accelerate", "apex", "datasets", "deepspeed", "fairscale", "flash-attn", "hydra-core", "lightning",
    "megatron-bridge", "megatron-core", "metaseq", "nemo-toolkit", "numpy", "nvidia-cudnn-cu11", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "pytorch-lightning", "tokenizers",
    "transformer-engine", "transformers", "triton",
)  # fmt: skip


def installed() -> dict[str, str]:
    """Versions by software: Python, PyTorch and its CUDA, and those of `PACKAGES` that are there."""
    from importlib import metadata  # noqa: PLC0415 - takes a while, and whoever sends this elsewhere does not need it

    found = {"python": platform.python_version(), **_torch()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _torch() -> dict[str, str]:
    """PyTorch's facts in the one file that takes no time to read."""
    from importlib import util  # noqa: PLC0415 - see `installed`

    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    own = util.spec_from_file_location("torch_version", Path(spec.origin).with_name("version.py"))
    if own is None or own.loader is None:
        return {}
    module = util.module_from_spec(own)
    try:
        own.loader.exec_module(module)
    except (OSError, ImportError):
        return {}
    named = {"torch": "__version__", "cuda": "cuda", "rocm": "hip"}
    found = {name: getattr(module, attribute, None) for name, attribute in named.items()}
    return {name: str(value) for name, value in found.items() if value is not None}


if __name__ == "__main__":
    print("\n" + MARK + json.dumps({"versions": installed(), "environ": dict(os.environ)}), flush=True)
