"""Finds the installed packages of the interpreter that runs this. It needs Python 3.8 or later alone.

`provenance` also runs the source of this module as a program, with interpreters of other environments.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.machinery import PathFinder
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
    folders = _folders()
    for name in PACKAGES:
        if folders is not None and _normal(name) not in folders:
            continue
        version = _version_in(folders[_normal(name)]) if folders is not None else None
        version = version or _metadata_version(name)
        if version is not None:
            versions[name] = version
    return versions


def _folders() -> dict[str, str] | None:
    """Map each distribution's normal name to its metadata; None if distributions may be outside of plain folders.

    `importlib.metadata` finds the same, but its import takes longer than this search.
    """
    metadata: dict[str, str] = {}
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    for entry in sys.path:
        folder = entry or "."
        try:
            names = os.listdir(folder)  # noqa: PTH208 - in the order in which the import system takes them
        except NotADirectoryError:  # an archive
            return None
        except OSError:
            continue
        for name in names:
            stem, _, kind = name.lower().rpartition(".")
            if kind == "egg":
                return None
            if kind in {"dist-info", "egg-info"}:
                metadata.setdefault(_normal(stem.partition("-")[0]), f"{folder}/{name}")
    return metadata


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _version_in(path: str) -> str | None:
    """Read the version in the head of a distribution's metadata; None without one."""
    for file in (f"{path}/METADATA", f"{path}/PKG-INFO", path):
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a text as it is
                for line in lines:
                    name, colon, value = line.partition(":")
                    if not colon and not line.strip():
                        break
                    if name.lower() == "version":
                        return value.lstrip().rstrip("\r\n")
        except OSError:
            continue
    return None


def _metadata_version(name: str) -> str | None:
    from importlib import metadata  # noqa: PLC0415 - it takes a while

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, str]:
    """Read PyTorch's versions from `torch/version.py`, which imports fast."""
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
    values = {name: getattr(module, attribute, None) for name, attribute in named.items()}
    return {name: str(value) for name, value in values.items() if value is not None}


if __name__ == "__main__":
    print("\n" + MARK + json.dumps({"versions": installed(), "environ": dict(os.environ)}), flush=True)
