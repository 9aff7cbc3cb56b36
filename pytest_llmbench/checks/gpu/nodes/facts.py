"""Raw facts of a node's driver and kernel about its GPUs.

The output of nvidia-smi for eight GPUs is long, so it is in a file of the step's folder and not in the answer.
"""

import os
import subprocess

from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_TIMEOUT_S = 60.0
# What the kernel says first: a log that begins with it is whole, and the ring buffer lost nothing yet.
_FIRST_WORDS = "Linux version"
_BEGINNING_LINES = 50
_OF_THE_DRIVER = ("NVRM", "nvidia", "Xid")
_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-iso"])
_KEPT_LINES = 2000


class ToolEnd(ProbeAnswer):
    """How a program ended."""

    command: str
    code: int | None
    """Its exit status; None if it has not ended by itself."""
    error: str | None
    """The reason of a failure; None if it ended well."""


class ToolOutput(ToolEnd):
    """The output of a program."""

    text: str


class SmiOutput(ToolEnd):
    """The output of `nvidia-smi -q -x`, in the file `path`."""

    path: str


class KernelLog(ProbeAnswer):
    """Lines of the driver in the kernel's log."""

    source: str | None
    """The program that printed the log; None where none can."""
    whole: bool
    """Whether it reaches back to the boot."""
    lines: tuple[str, ...]
    """The last 2000 of them."""
    refused: tuple[str, ...]
    """The reasons for not using other sources."""


class GpuFacts(ProbeAnswer):
    """A node's GPUs, as driver and kernel describe them."""

    smi: SmiOutput
    nvlink: ToolOutput
    kernel_log: KernelLog


def facts(context: RankContext, log: ProbeLog) -> GpuFacts:
    """Answer with what the GPU checks judge."""
    log.phase("nvidia-smi -q -x")
    smi = _output(["nvidia-smi", "-q", "-x"])
    path = context.folder.absolute() / "nvidia-smi" / f"{host_name()}.xml"
    write_text(path, smi.text)
    log.phase("nvidia-smi nvlink -s")
    links = _output(["nvidia-smi", "nvlink", "-s"])
    log.phase("kernel log")
    found = SmiOutput(**smi.model_dump(exclude={"text"}), path=str(path))
    return GpuFacts(smi=found, nvlink=links, kernel_log=kernel_log())


def kernel_log() -> KernelLog:
    """Lines of the driver since the node booted: of the first source that has them all, or of one that has some."""
    refused: list[str] = []
    partial: KernelLog | None = None
    for argv in _LOGS:
        told = _output(argv)
        lines = told.text.splitlines()
        if told.code != 0 or not lines:
            refused.append(f"{argv[0]}: {told.error or 'it printed nothing'}")
            continue
        of_driver = [line for line in lines if any(word in line for word in _OF_THE_DRIVER)]
        whole = any(_FIRST_WORDS in line for line in lines[:_BEGINNING_LINES])
        found = KernelLog(
            source=argv[0],
            whole=whole and len(of_driver) <= _KEPT_LINES,
            lines=tuple(of_driver[-_KEPT_LINES:]),
            refused=tuple(refused),
        )
        if whole:
            return found
        partial = partial or found
    none = KernelLog(source=None, whole=False, lines=(), refused=())
    return (partial or none).model_copy(update={"refused": tuple(refused)})


def _output(argv: list[str]) -> ToolOutput:
    command, error = " ".join(argv), None
    try:
        done = subprocess.run(
            argv, capture_output=True, check=False, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ToolOutput(command=command, code=None, text="", error=f"no end within {_TIMEOUT_S:g} s")
    except OSError as failed:
        return ToolOutput(command=command, code=None, text="", error=f"{failed.strerror}: {argv[0]}")
    text, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    if done.returncode != 0:
        words = " / ".join((errors.strip() or text.strip()).splitlines()[-3:])
        error = f"exit status {done.returncode}: {words}"[:1000]
    return ToolOutput(command=command, code=done.returncode, text=text, error=error)
