"""Raw facts of a node's driver and kernel about its GPUs. Standard library alone.

The output of nvidia-smi for eight GPUs is long, so it is in a file of the step's folder and not in the answer.
"""

import os
import subprocess
from typing import Any

from pytest_llmbench.core.files import write_text
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_TIMEOUT_S = 60.0
# What the kernel says first: a log that begins with it is whole, and the ring buffer lost nothing yet.
_FIRST_WORDS = "Linux version"
_BEGINNING_LINES = 50
_OF_THE_DRIVER = ("NVRM", "nvidia", "Xid")
_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-iso"])
_KEPT_LINES = 2000


def facts(context: RankContext, log: ProbeLog) -> dict[str, Any]:
    """Answer with what the GPU checks judge."""
    log.phase("nvidia-smi -q -x")
    smi = _output(["nvidia-smi", "-q", "-x"])
    path = context.folder.absolute() / "nvidia-smi" / f"{host_name()}.xml"
    write_text(path, smi.pop("text"))
    log.phase("nvidia-smi nvlink -s")
    links = _output(["nvidia-smi", "nvlink", "-s"])
    log.phase("kernel log")
    return {"smi": {**smi, "path": str(path)}, "nvlink": links, "kernel_log": kernel_log()}


def kernel_log() -> dict[str, Any]:
    """Lines of the driver since the node booted: of the first source that has them all, or else of one that has some.

    Returns:
        `source`, None where no source can be read; `whole`, whether it reaches back to the boot; `lines` of the driver,
        the last 2000; `refused`, why other sources were not taken.
    """
    refused: list[str] = []
    partial: dict[str, Any] | None = None
    for argv in _LOGS:
        told = _output(argv)
        lines = told["text"].splitlines()
        if told["code"] != 0 or not lines:
            refused.append(f"{argv[0]}: {told['error'] or 'it printed nothing'}")
            continue
        of_driver = [line for line in lines if any(word in line for word in _OF_THE_DRIVER)]
        whole = any(_FIRST_WORDS in line for line in lines[:_BEGINNING_LINES])
        found = {"source": argv[0], "whole": whole and len(of_driver) <= _KEPT_LINES, "lines": of_driver[-_KEPT_LINES:]}
        if whole:
            return {**found, "refused": refused}
        partial = partial or found
    return {**(partial or {"source": None, "whole": False, "lines": []}), "refused": refused}


def _output(argv: list[str]) -> dict[str, Any]:
    """The output of a program.

    Returns:
        `command`; `code`, its exit status, None where there is none; `text`, what it printed; `error`, why it failed.
    """
    told: dict[str, Any] = {"command": " ".join(argv), "code": None, "text": "", "error": None}
    try:
        done = subprocess.run(
            argv, capture_output=True, check=False, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {**told, "error": f"no end within {_TIMEOUT_S:g} s"}
    except OSError as error:
        return {**told, "error": f"{error.strerror}: {argv[0]}"}
    text, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    if done.returncode != 0:
        words = " / ".join((errors.strip() or text.strip()).splitlines()[-3:])
        told["error"] = f"exit status {done.returncode}: {words}"[:1000]
    return {**told, "code": done.returncode, "text": text}
