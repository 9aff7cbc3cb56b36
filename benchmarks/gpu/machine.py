"""What machine a benchmark ran on, and from which source, as far as it can be asked."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench import __version__

_ASKED = ("name", "driver_version", "power.limit", "clocks.max.sm", "memory.total")
_TIMEOUT_S = 60.0


def machine() -> dict[str, object]:
    """CPU, cores and GPUs of this host; what a GPU's driver does not say is left out."""
    found: dict[str, object] = {
        "cpu": _cpu(), "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "python": platform.python_version(),
    }  # fmt: skip
    rows = _words(["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"])
    gpus = [[field.strip() for field in row.split(",")] for row in (rows or "").splitlines() if row.strip()]
    if gpus:
        found["gpus"] = len(gpus)
        for name, values in zip(_ASKED, zip(*gpus, strict=True), strict=True):
            # One value is enough if all GPUs are alike.
            found[f"gpu_{name.replace('.', '_')}"] = values[0] if len(set(values)) == 1 else list(values)
    return found


def source(checkout: Path) -> dict[str, str]:
    """The package's version, and the commit where the checkout is one of git."""
    found = {"pytest-llmbench": __version__}
    commit = _words(["git", "-C", str(checkout), "rev-parse", "HEAD"])
    changed = _words(["git", "-C", str(checkout), "status", "--porcelain"])
    if commit and changed is not None:
        found["commit"] = commit.strip()
        found["state"] = f"changed: {len(changed.splitlines())} files" if changed else "clean"
    return found


def _cpu() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else platform.machine()


def _words(command: Sequence[str]) -> str | None:
    """What a program prints; None where it is missing, fails or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
