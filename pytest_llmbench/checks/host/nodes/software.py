"""The software of a node: versions of the system, of what is installed for this Python, and container runtimes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.host.nodes.files import text_of
from pytest_llmbench.workloads.node.installed import installed
from pytest_llmbench.workloads.node.machine import of_node
from pytest_llmbench.workloads.node.processes import ask

_COMMAND_S = 10.0
_KEPT = 20_000
# Programs that say their version in one line, by the name it is known under.
_SAY_VERSION = {
    "ofed": ("ofed_info", "-s"),
    "docker": ("docker", "--version"),
    "enroot": ("enroot", "version"),
    "apptainer": ("apptainer", "--version"),
    "nvidia-container-cli": ("nvidia-container-cli", "--version"),
}
_RUNTIMES = {"docker": ("docker", "info"), "enroot": ("enroot", "version"), "pyxis": ("srun", "--help")}


def software(root: Path) -> dict[str, str]:
    """Versions by software; what is not there is left out. PyTorch is looked at, and not imported."""
    found = {
        **of_node(),
        **installed(),
        "driver's cuda": driver_cuda(),
        "cuda toolkit": toolkit(text_of(root / "usr/local/cuda/version.json") or ""),
        "libnccl": library_version(_said("ldconfig", "-p"), "libnccl.so.2"),
        **{name: _said(*argv).partition("\n")[0] for name, argv in _SAY_VERSION.items()},
    }
    return {name: version for name, version in found.items() if version}


def driver_cuda() -> str | None:
    """The highest CUDA that the driver can run, such as `12.8`; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def toolkit(text: str) -> str | None:
    """The version of a CUDA toolkit from the text of its `version.json`; None where it says none."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["cuda"]["version"])
    return None


def library_version(cache: str, name: str) -> str | None:
    """The version that a library's file name ends in, by the text of `ldconfig -p`; None where there is no such one."""
    found = re.search(rf"^\s*{re.escape(name)} \(.*\) => (\S+)$", cache, re.MULTILINE)
    if found is None:
        return None
    # The name itself is a link to the file of this very version.
    return Path(found[1]).resolve().name.partition(".so.")[2] or None


def container_runtime(runtime: str, root: Path) -> dict[str, Any]:
    """Answer of a container runtime: exit status, output, and the parts that GPUs need."""
    argv = _RUNTIMES[runtime]
    folders = (root / "etc/cdi", root / "var/run/cdi")
    there = {
        "command": " ".join(argv),
        "cdi": sorted(str(path) for folder in folders for path in folder.glob("*nvidia*")),
        "nvidia-container-cli": shutil.which("nvidia-container-cli"),
    }
    try:
        answer = ask(argv, os.environ, _COMMAND_S)
    except OSError as error:
        return {**there, "code": None, "text": f"it cannot be run: {error.strerror}"}
    text = answer.text if answer.code is not None else f"no answer within {_COMMAND_S:g} s"
    return {**there, "code": answer.code, "text": text[:_KEPT]}


def _said(*argv: str) -> str:
    """The output of a program; empty if it is missing, fails or takes too long."""
    try:
        answer = ask(argv, os.environ, _COMMAND_S)
    except OSError:
        return ""
    return answer.text.strip() if answer.code == 0 else ""
