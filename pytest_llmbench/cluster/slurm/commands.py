"""Runs Slurm's commands: their output is read as bytes, and their options come from the command line alone."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.errors import ClusterError

TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: a forked child of a process with threads could hang while it loads
_LOOK_S = 0.1
# Messages of Slurm's commands while the controller is away, busy, or just back.
_SILENCE = re.compile(
    r"time[d ]*out|unable to (contact|connect|establish)|connect(ion)? (refused|reset|fail|timed)|zero bytes|did not "
    r"answer|communication|transmission|standby|unexpected (rpc|message)|not respond|not connected|receive fail"
    r"|send fail|try again",
    re.IGNORECASE,
)
# Slurm's words for one job too many. Its sentence on "job submit limit, user's size and/or time limits" is left out: it
# stands for limits on a single job as well.
_FULL = re.compile(
    r"\b(?P<limit>(?:Assoc|QOS)(?:Max|Grp)SubmitJobs?(?:Per[A-Z]\w+)?Limit)\b|temporarily unable to accept job|"
    r"Resource temporarily unavailable"
)
# Options of Slurm's commands that come from the environment, set by the job we may be in or by the user.
#: variable SLURM_JOB_ID: pytest runs inside this Slurm job: its nodes are used, and it is never cancelled
#: variable SLURM_CONF: the Slurm to use. Commands that llmbench starts get no other `SLURM_*` and no `PMI_*`
#: variable SBATCH_*: ignored, as are `SQUEUE_*`, `SRUN_*` and the like: they would win over the options of pytest, or
#:  hide jobs. The header lists those that you have set
_OPTIONS = (
    "SLURM_", "SLURMD_", "PMI_", "PMIX_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_",
)  # fmt: skip
_NOT_THE_USERS = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "SRUN_")
# What a user may have set to steer srun; other SLURM_* may be a site's own, such as SLURM_ROOT.
_OF_SRUN = frozenset(
    f"SLURM_{name}"
    for name in (
        "ACCOUNT", "CLUSTERS", "CONSTRAINT", "CPU_BIND", "CPUS_PER_GPU", "CPUS_PER_TASK", "DEPENDENCY", "DISTRIBUTION",
        "EXCLUSIVE", "EXPORT_ENV", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES", "HINT", "JOB_NAME", "MEM_BIND",
        "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE", "MPI_TYPE", "NETWORK", "NNODES", "NTASKS", "NTASKS_PER_NODE",
        "OVERLAP", "PARTITION", "QOS", "RESERVATION", "THREADS_PER_CORE", "TIMELIMIT", "WAIT", "WCKEY", "WORKING_DIR",
    )
)  # fmt: skip


class NoAnswerError(ClusterError):
    """Slurm was silent, or the effect of a command is unknown. Asking again may help."""


class NotYetError(NoAnswerError):
    """Slurm refused a request that it may accept in a moment, because its controller has just started."""


class QueueFullError(NotYetError):
    """Slurm refuses a job because its queue is full; it may accept the job when another one has ended.

    Attributes:
        limit: Slurm's name of the limit.
        counts_this_user: whether it counts the jobs of this user alone.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(f"Slurm takes no more jobs now ({limit})")
        self.limit = limit
        self.counts_this_user = "Grp" not in limit and ("Assoc" in limit or "PerUser" in limit)


def full_queue(words: str) -> str:
    """The limit on the number of jobs in the queue that a refusal of Slurm names; empty for any other refusal."""
    match = _FULL.search(words)
    return "" if match is None else match["limit"] or "MaxJobCount"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmAnswer:
    """The output of a command, and how it ended."""

    code: int
    stdout: str
    stderr: str


def run(command: Sequence[str]) -> str:
    """Run one Slurm command and return its output. Raises ClusterError if the command is missing, failed or hung."""
    return succeeded(command, ask(command))


def succeeded(command: Sequence[str], answer: SlurmAnswer) -> str:
    """The output of a command.

    Raises NoAnswerError if the controller was out of reach, and ClusterError if it failed otherwise, with Slurm's own
    words.
    """
    if answer.code == 0:
        return answer.stdout
    words = slurm_words(answer.stderr)
    kind = NoAnswerError if is_silence(words) else ClusterError
    raise kind(words or f"{' '.join(command)} exited with {answer.code}")


def is_silence(words: str) -> bool:
    """True if a command failed because the controller was out of reach; a refusal is an answer."""
    return _SILENCE.search(words) is not None


def ask(
    command: Sequence[str], limit_s: Callable[[], float] = lambda: TIMEOUT_S, *, questions: bytes = b""
) -> SlurmAnswer:
    """Run one Slurm command to its end, whatever that is; `questions` are its input.

    Undecodable bytes are replaced: a reason or a comment may be in any encoding. `limit_s` returns the seconds that it
    may take in all, and is called again while it runs, as they may become less. Raises NoAnswerError if it was killed
    for taking too long, and ClusterError if it is missing or cannot start.
    """
    began = time.monotonic()
    # A file, because `communicate` drops the rest of its input after its first timeout.
    asked = os.memfd_create("questions")
    try:
        os.pwrite(asked, questions, 0)
        # A session of its own: Ctrl-C at the terminal is for pytest alone, and what a wrapper starts ends with it.
        process = subprocess.Popen(
            command, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=clean_environment(), start_new_session=True,
            preexec_fn=_end_with_us if command[0] == "sbatch" else None,  # noqa: PLW1509 - calls one C function
        )  # fmt: skip
    except OSError as error:
        raise ClusterError(
            f"{command[0]} is not on PATH, or cannot be started ({error}): run this on a login node of the cluster, or "
            "use --cluster local"
        ) from error
    finally:
        os.close(asked)
    with process:
        while True:
            try:
                stdout, stderr = process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                took = time.monotonic() - began
                if took < limit_s():
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                words = ""
                with contextlib.suppress(subprocess.TimeoutExpired):  # a process that it started may have its output
                    words = slurm_words(process.communicate(timeout=_LOOK_S)[1].decode(errors="replace"))
                message = f"{command[0]} did not answer within {took:.0f} s{': ' if words else ''}{words}"
                raise NoAnswerError(message) from None
            out, err = stdout.decode(errors="replace"), stderr.decode(errors="replace")
            return SlurmAnswer(code=process.returncode, stdout=out, stderr=err)


def _end_with_us() -> None:
    """Make a forked sbatch end with the thread that waits for it, so that only living sessions submit jobs."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def slurm_words(stderr: str) -> str:
    """Slurm's messages on one line, without the `sbatch: error:` in front of each."""
    lines = (plain(line) for line in stderr.splitlines())
    words = (line.split(": error: ", 1)[-1].split("error: ", 1)[-1] for line in lines if line)
    return "; ".join(dict.fromkeys(words))


def plain(text: str) -> str:
    """A foreign text on one line, without characters that a terminal would obey."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def clean_environment(extra: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """This environment without what would become options of Slurm's commands.

    Inside a job, SLURM_NTASKS, SLURM_CPU_BIND and the like would silently change every srun and sbatch that we start.
    A user's SBATCH_PARTITION would win over `--partition`, since ours are written into the script. SLURM_CONF stays:
    it names the cluster.
    """
    # pytest changes its own variables meanwhile, in another thread.
    keep = {
        name: value for name in list(os.environ) if not _is_option(name) and (value := os.environ.get(name)) is not None
    }
    return keep | dict(extra)


def ignored_options() -> list[str]:
    """The user's variables that would be options of Slurm's commands, and that llmbench removes for its own."""
    own = () if "SLURM_JOB_ID" in os.environ else _OF_SRUN  # inside a job, Slurm has set those
    return sorted(
        name for name in list(os.environ) if name in own or (_is_option(name) and not name.startswith(_NOT_THE_USERS))
    )


def _is_option(name: str) -> bool:
    return name.startswith(_OPTIONS) and name != "SLURM_CONF"
