"""Raw facts of a node's driver and kernel about its GPUs.

The output of nvidia-smi for eight GPUs is long, so it is in a file of the step's folder.
"""

import os
import subprocess

from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_TIMEOUT_S = 60.0
# The first line of the kernel: a log that begins with it is whole.
_FIRST_WORDS = "Linux version"
_BEGINNING_LINES = 50
_DRIVER_WORDS = ("NVRM", "nvidia", "Xid")
_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-iso"])
_KEPT_LINES = 2000


class ToolEnd(ProbeAnswer):
    """The end of a program."""

    command: str
    code: int | None  # its exit status; None if it was ended
    error: str | None  # the reason of a failure


class ToolOutput(ToolEnd):
    """The output of a program."""

    text: str


class SmiOutput(ToolEnd):
    """The output of `nvidia-smi -q -x`, in the file `path`."""

    path: str


class KernelLog(ProbeAnswer):
    """Lines of the driver in the kernel's log."""

    source: str | None  # the program that printed the log; None where none can
    whole: bool  # whether it reaches back to the boot
    lines: tuple[str, ...]  # the last 2000 of them
    refused: tuple[str, ...]  # the reasons against the other sources


class GpuFacts(ProbeAnswer):
    """A node's GPUs, as driver and kernel describe them."""

    smi: SmiOutput
    nvlink: ToolOutput
    kernel_log: KernelLog


def facts(context: RankContext, log: ProbeLog) -> GpuFacts:
    """Answer with what the GPU checks judge."""
    log.phase("nvidia-smi -q -x")
    smi = _run(["nvidia-smi", "-q", "-x"])
    path = context.folder.absolute() / "nvidia-smi" / f"{host_name()}.xml"
    write_text(path, smi.text)
    log.phase("nvidia-smi nvlink -s")
    links = _run(["nvidia-smi", "nvlink", "-s"])
    log.phase("kernel log")
    smi_output = SmiOutput(**smi.model_dump(exclude={"text"}), path=str(path))
    return GpuFacts(smi=smi_output, nvlink=links, kernel_log=kernel_log())


def kernel_log() -> KernelLog:
    """Lines of the driver since the node booted: of the first source with a whole log, or of one with a part."""
    refused: list[str] = []
    partial: KernelLog | None = None
    for argv in _LOGS:
        output = _run(argv)
        lines = output.text.splitlines()
        if output.code != 0 or not lines:
            refused.append(f"{argv[0]}: {output.error or 'it printed nothing'}")
            continue
        driver_lines = [line for line in lines if any(word in line for word in _DRIVER_WORDS)]
        whole = any(_FIRST_WORDS in line for line in lines[:_BEGINNING_LINES])
        log = KernelLog(
            source=argv[0],
            whole=whole and len(driver_lines) <= _KEPT_LINES,
            lines=tuple(driver_lines[-_KEPT_LINES:]),
            refused=tuple(refused),
        )
        if whole:
            return log
        partial = partial or log
    none = KernelLog(source=None, whole=False, lines=(), refused=())
    return (partial or none).model_copy(update={"refused": tuple(refused)})


def _run(argv: list[str]) -> ToolOutput:
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
    text, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode != 0:
        words = " / ".join((errors.strip() or text.strip()).splitlines()[-3:])
        error = f"exit status {done.returncode}: {words}"[:1000]
    return ToolOutput(command=command, code=done.returncode, text=text, error=error)
