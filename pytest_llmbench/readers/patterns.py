"""Patterns common to all frameworks' logs: numbers, and the messages of programs that fail."""

import re

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# Lightning pads numbers without decimals: `nan.0`.
_NOT_FINITE = re.compile(r"([+-]?(?:nan|inf(?:inity)?))(?:\.0*)?", re.IGNORECASE | re.ASCII)

# The reason is in the last line of a traceback.
_FAILURE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)(?::\s|\s*$)"
    r"|(?:Error|Exception): "
    r"|(?:[\w./-]+: )?(?:fatal )?(?:error|ERROR): "  # argparse, Slurm, compilers, loaders of data
    r"|ERROR:\w[\w.]*:"  # Python's logging
    r"|Fatal Python error: "
    r"|\[E[\d :.]*ProcessGroup\w+\.cpp:\d+\]"  # torch's watchdog over collective operations
    r"|E\d{4} [\d:.]+ +\d+ torch/distributed/elastic/"
    r"|(?:CUDA|HIP) out of memory"
    r"|terminate called (?:after throwing|without an active)"
    r"|(?:[\w./-]+: )?(?:Memory access fault by GPU|(?:CUDA|HIP|NCCL|RCCL) error\b|HSA_STATUS_ERROR)"
    r"|FATAL: |(?:[\w./-]+: )?error while loading shared libraries|MPI_ABORT was invoked|Out of memory: Killed process"
    # glibc, as it aborts
    r"|(?:[\w./-]+: )?(?:(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): \w|double free or corruption"
    r"|corrupted (?:size|double-linked)|\*\*\* (?:stack smashing|buffer overflow) detected"
    r"|.{1,300}[]:] Assertion .{1,300} failed)"  # of C, and of a kernel on a GPU
    r"|\[[\w.-]+:\d+\] \*\*\* An error occurred in MPI_|mpirun noticed that process |docker: Error response "
    r"|\*\*\* glibc detected \*\*\*|Assertion failed: |Exception raised from |DataLoader worker \(pid"
    r"|(?:Failed: )?Cuda error |(?:\[\d{4}-\d\d-\d\d [\d:,]+\] )?\[ERROR\] |Error in sitecustomize"
    r"|CUDA driver version is insufficient|ORTE was unable to |Primary job +terminated normally, but "
    r"|container_linux\.go:\d+: |error loading checkpoint\s*$"
    r"|(?:[\w./-]+: )?(?:line \d+: +)?(?:\d+ )?"  # a shell, of the signal that ended a program
    r"(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception|Killed|Aborted|Terminated)"
    r"(?: +\(core dumped\)|\s*$|\s{2})",
    re.ASCII,
)
# A signal or the kernel's killer of processes, anywhere in a line.
_KILLED = re.compile(
    r"\bSIG(?:SEGV|BUS|ABRT|ILL|FPE|KILL)\b|Segmentation fault|Caught signal \d|\*\*\* Process received signal"
    r"|oom[-_]kill",
    re.ASCII,
)
# Messages of a shell, a file system or NCCL that a run may survive.
_MAY_BE_HARMLESS = re.compile(
    r"(?:(?:\S+: ){1,4}.{0,200}(?:command not found|Permission denied|No such file or directory)"
    r"|(?:(?:\S+: ){1,4}.{0,200})?(?:No space left on device|Disk quota exceeded|Stale file handle|Input/output error"
    r"|Transport endpoint is not connected))\s*$"
    r"|.{0,99}\bNCCL WARN ",
    re.ASCII,
)
# Messages further from the cause than those of the failed program, nearest first: torchrun's summary of a rank's end,
# errors of ranks that lost a peer, and reports that a started program failed or was ended.
_TELLS_LESS = (
    re.compile(r"E\d{4} ", re.ASCII),
    re.compile(r".*(?:[Cc]onnection (?:was )?(?:closed|reset|refused)|[Bb]roken pipe|ncclRemoteError)", re.ASCII),
    re.compile(
        r"srun: error: |mpirun |(?:\w+\.)*(?:ChildFailedError|SignalException|CalledProcessError)\b"
        r"|ERROR:torch\.distributed|(?:\[[\d :,-]+\] )?\[ERROR\] \[launch\.py|Primary job |ORTE ",
        re.ASCII,
    ),
)
# It may stand behind a progress bar, which has no line end, or behind a time.
_CUT_OFF = re.compile(
    r"(?:(?<![\w.'\"(-])[\w.-]+: |^)error: \*\*\* (?:JOB|STEP) [\w.+]+ (?:ON \S+ )?CANCELLED AT \S+ "
    r"DUE TO TIME LIMIT \*\*\*",
    re.ASCII,
)


# Every line about a failure or a time limit contains one of these.
FAILURES = (
    b"rror", b"Exception", b"Interrupt", b"ProcessGroup", b"torch/distributed/elastic/", b"CUDA out of memory",
    b"Segmentation fault", b"ERROR", b"terminate called", b"Memory access fault", b"Illegal instruction",
    b"Floating point exc", b"Killed", b"Aborted", b"Terminated", b"SIG", b"signal", b"oom", b"FATAL", b"HSA_STATUS",
    b"MPI_", b"mpirun", b"command not found", b"Permission denied", b"No such file", b"No space left", b"quota",
    b"Stale file", b"NCCL WARN", b"HIP out of memory", b"(): ", b"corrupt", b"Assertion", b"smashing",
    b"overflow detected", b"glibc detected", b"DataLoader worker", b"driver version", b"ORTE ", b"Primary job",
    b"endpoint", b"container_linux",
)  # fmt: skip


def number(text: str) -> float | None:
    """Read a number as frameworks print it, NaN and infinities included; None for any other text."""
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _NOT_FINITE.fullmatch(text)
    return float(match[1]) if match else None


def failure(text: str) -> str | None:
    """Return the line if a program or Slurm reports a failure with it; None for any other line."""
    return text.strip() if any(p.match(text) for p in (_FAILURE, _MAY_BE_HARMLESS)) or _KILLED.search(text) else None


def remoteness(words: str) -> int:
    """Rank the words of a failure by their distance from the cause: 0 for those of the failed program."""
    harmless = _MAY_BE_HARMLESS.match(words) and not _FAILURE.match(words)
    last = len(_TELLS_LESS) + 1 if harmless else 0
    return next((number for number, pattern in enumerate(_TELLS_LESS, start=1) if pattern.match(words)), last)


def cut_off(text: str) -> str | None:
    """Return the line if Slurm reports with it that the job or step ended at its time limit; else None."""
    match = _CUT_OFF.search(text) if "TIME LIMIT" in text else None
    return match[0] if match else None
