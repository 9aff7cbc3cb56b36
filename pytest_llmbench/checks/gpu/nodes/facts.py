"""Raw facts of a node's driver and kernel about its GPUs.

The output of nvidia-smi for eight GPUs is long, so it is in a file of the step's folder.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Self

from pydantic import model_validator

from pytest_llmbench.checks.gpu.kernel_log import Condensed
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.processes import ask
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_TIMEOUT_S, _SHORT_S = 60.0, 5.0
# The first line of the kernel: a log that begins with it is whole.
_FIRST_WORDS = b"Linux version"
_BEGINNING_LINES = 50
_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-iso"])


class ToolOutput(ProbeAnswer):
    """The output of a program."""

    command: str
    code: int | None  # its exit status; None if it was ended
    error: str | None  # the reason of a failure
    complaint: str = ""  # its error output, if it succeeded all the same
    text: str


class KernelLog(ProbeAnswer):
    """Lines of the driver in the kernel's log."""

    source: str | None  # the program that printed the log; None where none can
    whole: bool  # whether it reaches back to the boot
    lines: tuple[str, ...]  # about errors: the first and the last one of each kind, in their order
    times: tuple[int, ...]  # for each line, how many of its kind it stands for
    refused: tuple[str, ...]  # the reasons against the other sources

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if len(self.lines) != len(self.times):
            raise ValueError(f"{len(self.times)} times of {len(self.lines)} lines")
        return self


class GpuFacts(ProbeAnswer):
    """A node's GPUs, as driver and kernel describe them."""

    smi: ToolOutput  # of `nvidia-smi -q -x`, without its text, which is in the file
    smi_file: str
    nvlink: ToolOutput
    imex: ToolOutput | None = None  # of the service that joins the memory of several nodes; None where it is missing
    kernel_log: KernelLog


def facts(context: RankContext, log: ProbeLog) -> GpuFacts:
    """Answer with what the GPU checks judge."""
    log.phase("nvidia-smi -q -x")
    smi = _run(["nvidia-smi", "-q", "-x"])
    path = context.folder.absolute() / "nvidia-smi" / f"{host_name()}.xml"
    write_text(path, smi.text)
    log.phase("nvidia-smi nvlink -s")
    # A driver that hung once is asked again only briefly: the kernel log gives the reason.
    hangs = smi.error is not None and smi.error.startswith("no end")
    links = _run(["nvidia-smi", "nvlink", "-s"], _SHORT_S if hangs else _TIMEOUT_S)
    imex = None
    if shutil.which("nvidia-imex-ctl") is not None:
        log.phase("nvidia-imex-ctl -N -j")
        imex = _run(["nvidia-imex-ctl", "-N", "-j"])
    log.phase("kernel log")
    smi = smi.model_copy(update={"text": ""})
    return GpuFacts(smi=smi, smi_file=str(path), nvlink=links, imex=imex, kernel_log=kernel_log())


def kernel_log() -> KernelLog:
    """The driver's errors since the node booted: of the first source with a whole log, or of one with a part."""
    refused: list[str] = []
    partial = KernelLog(source=None, whole=False, lines=(), times=(), refused=())
    for argv in _LOGS:
        log = _read_log(argv)
        if isinstance(log, str):
            refused.append(f"{argv[0]}: {log}")
        elif log.whole:
            return log.model_copy(update={"refused": tuple(refused)})
        elif partial.source is None:
            partial = log
    return partial.model_copy(update={"refused": tuple(refused)})


def _read_log(argv: Sequence[str]) -> KernelLog | str:
    """Read one source line by line, as it may have a million of them; else return the reason."""
    errors_in_log = Condensed()
    beginning: list[bytes] = []
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "LC_ALL": "C"}
            )
        except OSError as error:
            return f"{error.strerror}: {argv[0]}"
        limit = threading.Timer(_TIMEOUT_S, process.kill)
        limit.start()
        with process:
            for line in process.stdout or ():
                errors_in_log.add(line)
                if len(beginning) < _BEGINNING_LINES:
                    beginning.append(line)
        if not limit.is_alive():
            return f"no end within {_TIMEOUT_S:g} s"
        limit.cancel()
        if process.returncode != 0:
            errors.seek(0)
            words = " / ".join((errors.read() or b"".join(beginning)).decode(errors="replace").split("\n")[-4:-1])
            return f"exit status {process.returncode}: {words}"[:1000]
    lines = errors_in_log.lines()
    if not beginning:
        return "it printed nothing"
    return KernelLog(
        source=argv[0], whole=errors_in_log.whole and any(_FIRST_WORDS in line for line in beginning),
        lines=tuple(line.rstrip("\n") for line, _ in lines), times=tuple(times for _, times in lines), refused=(),
    )  # fmt: skip


def _run(argv: list[str], limit_s: float = _TIMEOUT_S) -> ToolOutput:
    command, error = " ".join(argv), None
    try:
        done = ask(argv, {**os.environ, "LC_ALL": "C"}, limit_s, apart=True)
    except OSError as failed:
        return ToolOutput(command=command, code=None, text="", error=f"{failed.strerror}: {argv[0]}")
    if done.code is None:
        return ToolOutput(command=command, code=None, text="", error=f"no end within {limit_s:g} s")
    if done.code != 0:
        words = " / ".join((done.errors.strip() or done.text.strip()).splitlines()[-3:])
        error = f"exit status {done.code}: {words}"[:1000]
    complaint = "" if error else " / ".join(done.errors.strip().splitlines()[-3:])[:1000]
    return ToolOutput(command=command, code=done.code, text=done.text, error=error, complaint=complaint)
