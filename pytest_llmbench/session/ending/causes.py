"""Problems of an ended run outside its log: its job, its driver, its ranks."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.cluster.allocation import describe_end
from pytest_llmbench.cluster.jobs import Job, SlurmJob
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus
from pytest_llmbench.core.durations import format_minutes
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.beginning import SUBMITTED
from pytest_llmbench.core.wire.driver import DriverReport
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence
from pytest_llmbench.readers.log import last_words
from pytest_llmbench.readers.srun import blamed_node, failed_node, first_to_end

# Ends of a job that its program did not cause.
JOB_ENDS: dict[JobState, ProblemKind] = {
    JobState.CANCELLED: "job_cancelled",  #: problem job_cancelled: the Slurm job was cancelled from outside
    JobState.TIMEOUT: "job_timeout",  #: problem job_timeout: the Slurm job reached its time limit
    JobState.NODE_FAIL: "job_node_fail",  #: problem job_node_fail: a node failed; the message names it
    #: problem job_preempted: a job of higher priority took the nodes, at once or after a grace time
    JobState.PREEMPTED: "job_preempted",
    #: problem job_suspended: the Slurm job was suspended during the run, even if it was resumed before the end
    JobState.SUSPENDED: "job_suspended",
    JobState.OUT_OF_MEMORY: "job_out_of_memory",  #: problem job_out_of_memory: a task used too much memory
    JobState.LOST: "job_lost",
}  #: problem job_lost: Slurm no longer knows the job, stopped answering for it, or gave its id to another job
# Failures of healthy ranks after another one is gone.
_AFTERSHOCKS = ("connection", "peer", "socket", "broken pipe", "nccl", "timed out", "ownergone", "keyboardinterrupt")
_OUTPUT = Path(layout.OUTPUT).name


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Evidence):
    """The remains of a finished run.

    Attributes:
        driver: the report of the driver of a command; None for ranks of our own, or when it never began.
        ended_by_us: the problem for which the watch ended it, if it did.
    """

    folder: Path
    job: Job
    status: JobStatus
    driver: DriverReport | None
    ended_by_us: Problem | None


def cut_off(recipe: Recipe, status: JobStatus, ended_by_us: Problem | None) -> str | None:
    """How a run that is meant to be cut off at its time limit ended; None if it ended otherwise."""
    if recipe.end != "time_limit":
        return None
    if ended_by_us is not None and ended_by_us.kind == "time_limit":
        return f"ended at its time limit of {format_minutes(recipe.time_limit)}"
    return "Slurm ended it at its time limit" if status.state is JobState.TIMEOUT else None


def cause(outcome: Outcome) -> Problem | None:
    """Problem of a run apart from its log."""
    if outcome.status.state is JobState.SUSPENDED:
        return _job_problem(outcome)
    if (problem := problem_of(outcome.driver)) is not None or outcome.cut_off is not None:
        return problem
    if problem := _started_again(outcome) or outcome.ended_by_us or _job_problem(outcome):
        return problem
    is_command = get_engine(outcome.recipe.engine).kind == "command"
    return _driver_problem(outcome) if is_command else _rank_problem(outcome)


def _driver_problem(outcome: Outcome) -> Problem | None:
    """Problem of a command whose script failed to start, or to do all its work.

    One that fails afterwards, during shutdown, has done it; its record has the exit code.
    """
    driver, output = outcome.driver, outcome.folder / layout.OUTPUT
    if driver is None:
        log = log_to_read(outcome.folder / layout.LOGS)
        printed = last_words(log) if log.is_file() else ""
        words = [*outcome.job.last_words().splitlines()[-3:], printed, "nothing was printed"]
        how = outcome.status.reason or outcome.status.word or outcome.status.state
        message = f"the run's script was never started ({how}): {next(word for word in words if word)}"
        #: problem launch_failed: no rank, or no script, could be started, [nor again](#launches)
        return Problem(kind="launch_failed", message=message, log=str(outcome.folder / layout.LOGS))
    if driver.exit_code is None:
        message = f"the driver of the run's script on {driver.hosts[0]} died without a word (killed, or out of memory?)"
        return Problem(kind="rank_died", message=message, log=str(output))
    if driver.exit_code != 0 and outcome.series.completed is None:
        said = outcome.series.failure or last_words(output) or "it printed nothing"
        step = max((step.step for step in outcome.series.steps), default=0)
        message = (
            f"its script ended with exit code {driver.exit_code}: {said}; the run had reached step {step} of "
            f"{outcome.recipe.steps}"
        )  #: problem command_failed: the script failed before its log proves that all work was done
        return Problem(kind="command_failed", message=message, log=str(output))
    return None


def _job_problem(outcome: Outcome) -> Problem | None:
    status, job = outcome.status, outcome.job
    if status.state not in JOB_ENDS:
        return None
    # If the ranks report all work done, the end of the job is unimportant; but they cannot see a suspension.
    if status.state is not JobState.SUSPENDED and done(outcome.series, outcome.driver, outcome.topology):
        return None
    lost = failed_node(job.last_words()) if status.state is JobState.NODE_FAIL else None
    reason = "; ".join(filter(None, (status.reason, f"srun lost {lost}" if lost else "")))
    known = replace(status, reason=reason, nodelist=status.nodelist or ",".join(job.hosts))
    return Problem(
        kind=JOB_ENDS[status.state], message=describe_end(job.job_id, known), log=str(outcome.folder / layout.LOGS)
    )


def lost_nodes(outcome: Outcome, problem: Problem | None) -> tuple[str, ...]:
    """The nodes that the run lost: those that Slurm shows as failed, and the one that srun blames.

    A node that was mended within seconds is shown as healthy when Slurm is asked.
    """
    if problem is None or problem.kind != "job_node_fail":
        return ()
    job = outcome.job
    named = blamed_node(job.last_words(), job.hosts)
    lost = {*outcome.status.failed, *((named,) if named is not None else ())}
    return tuple(host for host in job.hosts if host in lost)


def _started_again(outcome: Outcome) -> Problem | None:
    """Problem of a job that Slurm started twice, unless the first start had done all its work on the same nodes.

    Ranks of a job of their own run where it started: those on other nodes are of an earlier start.
    """
    who, job = second_start(outcome.folder), outcome.job
    ran = {info.node for info in outcome.series.ranks if info.node is not None}
    elsewhere = sorted((ran or set(outcome.driver.hosts if outcome.driver else ())) - set(job.hosts))
    if not isinstance(job, SlurmJob) or not job.hosts or not elsewhere:
        if who is None or done(outcome.series, outcome.driver, outcome.topology):
            return None
        how = f"{who} refused to begin again, and the first start had not done all its work"
    else:
        how = f"it has {', '.join(job.hosts)} now, and the first start was on {', '.join(elsewhere)}"
    #: problem started_again: Slurm started the run's job a second time, after its controller had forgotten the first
    #:  start; the second measures nothing
    message = (
        f"Slurm started {job.title} a second time (its controller was killed before it had saved the first?): {how}"
    )
    return Problem(kind="started_again", message=message, log=str(outcome.folder / layout.LOGS))


def problem_of(driver: DriverReport | None) -> Problem | None:
    """The problem that kept a driver from starting its script."""
    if driver is None or driver.problem is None:
        return None
    return Problem(kind=driver.problem.kind, message=driver.problem.message)


def done(series: StepSeries, driver: DriverReport | None, topology: Topology) -> bool:
    """True if every rank of ours, or the log and the driver of a command, report that all work is done."""
    if driver is not None:
        return driver.exit_code is not None and series.completed is not None
    return sum(info.ended for info in series.ranks) == topology.world_size


def began(folder: Path) -> bool:
    """True if a rank or a driver of the run ever wrote, or printed, something."""
    if (folder / layout.DRIVER).exists():
        return True
    patterns = (f"{layout.STEPS}/*", f"{layout.LOGS}/{layout.printed('*')}", f"{layout.LOGS}/*_log.out")
    logs = (path for pattern in patterns for path in folder.glob(pattern))
    return any(path.stat().st_size for path in logs)


def _rank_problem(outcome: Outcome) -> Problem | None:
    """Name the rank that ended the run, and leave out those that failed after it."""
    failed = sorted((info for info in outcome.series.ranks if info.failure), key=lambda info: info.failed_at or 0.0)
    silent = [info for info in outcome.series.ranks if not info.ended and not info.failure]
    causes = [info for info in failed if not _is_aftershock(info.failure or "")]
    if causes:
        return _rank_died(outcome, causes[0], f"{_rank(causes[0])} failed: {causes[0].failure}")
    if outcome.series.failure is not None:  # the others waited for it in vain
        log = outcome.folder / layout.LOGS
        return Problem(kind="rank_died", message=outcome.series.failure, log=str(log_to_read(log)))
    if silent:  #: problem rank_died: a rank ended with an error, or without a word; the message names it
        words = outcome.job.last_words()
        first = _first_to_end(silent, words)
        errors = [line for line in words.splitlines() if "error:" in line] or words.splitlines()
        said = f"; the launcher says: {' / '.join(errors[:3])}" if words else ""
        names = ", ".join(_rank(info) for info in first[:4])
        return _rank_died(outcome, first[0], f"{names} died without a word (killed, or out of memory?){said}")
    if failed:
        return _rank_died(outcome, failed[0], f"{_rank(failed[0])} failed: {failed[0].failure}")
    if outcome.status.state is JobState.FAILED and len(outcome.series.ranks) < outcome.topology.world_size:
        # A rank that failed at its very start has the reason in its step log.
        reasons = [*outcome.series.unreadable[:1], *outcome.job.last_words().splitlines()[-1:], "nothing was printed"]
        return Problem(
            kind="launch_failed",
            message=f"{len(outcome.series.ranks)} of {outcome.topology.world_size} ranks started "
            f"({outcome.status.reason or outcome.status.word}): {reasons[0]}",
            log=str(log_to_read(outcome.folder / layout.LOGS)),
        )
    return None


def _first_to_end(silent: list[RankInfo], words: str) -> list[RankInfo]:
    first = set[int]().union(*(ended.ranks for ended in first_to_end(words)))
    return [info for info in silent if info.rank in first] or silent


def _is_aftershock(failure: str) -> bool:
    return any(word in failure.lower() for word in _AFTERSHOCKS)


def _rank(info: RankInfo) -> str:
    return f"rank {info.rank} on {info.host} (pid {info.pid})"


def _rank_died(outcome: Outcome, info: RankInfo, message: str) -> Problem:
    step = max((step.step for step in outcome.series.steps), default=0)
    return Problem(
        kind="rank_died",
        message=f"{message}; the run had reached step {step} of {outcome.recipe.steps}",
        log=str(log_to_read(outcome.folder / layout.LOGS, info.rank)),
    )


def log_to_read(logs: Path, rank: int = 0) -> Path:
    """The first file with some output of a rank, a command or its launcher; else the folder `logs`."""
    patterns = (
        layout.printed(rank), f"*_{rank}_log.err", _OUTPUT, layout.SRUN,
        f"../{layout.STEPS}/{layout.step_log(rank)}", f"*_{rank}_log.out",
    )  # fmt: skip
    candidates = (path for pattern in patterns for path in sorted(logs.glob(pattern)))
    return next((path.resolve() for path in candidates if _has_output(path)), logs)


def with_log_to_read(record: RunRecord) -> RunRecord:
    """A record whose problem names the whole path of a log with some output, where there is one."""
    problem = record.problem
    if problem is None or problem.log is None:
        return record
    places = (Path(), record.logs, record.logs.parent / layout.STEPS, Path(record.folder) / layout.STEPS)
    named = next((place / problem.log for place in places if _has_output(place / problem.log)), None)
    log = named or log_to_read(record.logs)
    return record.model_copy(update={"problem": problem.model_copy(update={"log": str(log)})})


def _has_output(path: Path) -> bool:
    # The log of a silent command still has a label.
    return path.is_file() and path.stat().st_size > 0 and (path.name != _OUTPUT or last_words(path) != "")


def sweep(session: Path, sane: Iterable[str]) -> None:
    """Remove files of a finished session that are of no further use: each costs an inode of the shared folder.

    These are what jobs executed, empty logs, and the phases of the ranks of `sane` runs, by their keys. Errors
    are ignored.
    """
    logs = (
        session / layout.HOLDER,
        *session.glob(f"{layout.FOLDERS['run']}/*/{layout.LOGS}"),
        *session.glob(f"{layout.FOLDERS['check']}/*/{layout.STEPS}/*/{layout.LOGS}"),
    )
    for folder in logs:
        printed = (*folder.glob("*_log.err"), *folder.glob("*_log.out"))
        for path in (*folder.glob(f"*_{SUBMITTED}"), *folder.glob("*_result.json"), *printed):
            with contextlib.suppress(OSError):
                if path not in printed or path.stat().st_size == 0:
                    path.unlink()
    for key in sane:
        phases = session / layout.FOLDERS["run"] / key / layout.PHASES
        with contextlib.suppress(OSError):
            for path in phases.glob("*"):
                path.unlink(missing_ok=True)
            phases.rmdir()
