"""Finds the installed packages of this interpreter. It needs Python 3.8 or later alone.

`provenance` also runs the source of this module as a program, with interpreters of other environments.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

MARK = "LLMBENCH_INSTALLED "
# Names of distributions.
PACKAGES = (
    "accelerate", "apex", "datasets", "deepspeed", "fairscale", "flash-attn", "hydra-core", "lightning",
    "megatron-bridge", "megatron-core", "metaseq", "nemo-toolkit", "numpy", "nvidia-cudnn-cu11", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "pytorch-lightning", "tokenizers",
    "transformer-engine", "transformers", "triton",
)  # fmt: skip


def installed() -> dict[str, str]:
    """Versions by software: Python, PyTorch and its CUDA, and those of `PACKAGES` that are there."""
    versions = {"python": platform.python_version(), **_torch()}
    for name in PACKAGES:
        # A damaged distribution may lack its metadata, or the version in it.
        with suppress(metadata.PackageNotFoundError, KeyError, OSError, TypeError, ValueError):
            versions[name] = metadata.version(name)
    return {name: version for name, version in versions.items() if version}


def _torch() -> dict[str, str]:
    """Read PyTorch's versions from `torch/version.py`, which imports fast."""
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
    values = {name: getattr(module, attribute, None) for name, attribute in named.items()}
    return {name: str(value) for name, value in values.items() if value is not None}


if __name__ == "__main__":
    print("\n" + MARK + json.dumps({"versions": installed(), "environ": dict(os.environ)}), flush=True)
