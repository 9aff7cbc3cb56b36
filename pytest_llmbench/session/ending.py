"""The end of a run: its problem by its job, its driver and its ranks, or what it measured, and so its record."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.cluster.allocation import describe_end
from pytest_llmbench.cluster.jobs import Job, SlurmJob
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus
from pytest_llmbench.cluster.system import System, published_tflops
from pytest_llmbench.core.durations import CUT_OFF, format_minutes
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Metric, Problem, ProblemKind, RunIdentity, RunOutcome, RunRecord
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.beginning import SUBMITTED
from pytest_llmbench.core.wire.driver import DriverReport
from pytest_llmbench.core.wire.fault import strikes
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging import recount
from pytest_llmbench.judging.findings import findings as findings_of
from pytest_llmbench.judging.findings import long_start, unconfirmed
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible, outside
from pytest_llmbench.judging.sanity.rates import clock_share
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.readers.log import last_words
from pytest_llmbench.readers.srun import blamed_node, failed_node, first_to_end

# Ends of a job that its program did not cause.
JOB_ENDS: dict[JobState, ProblemKind] = {
    JobState.CANCELLED: "job_cancelled",  #: problem job_cancelled: the Slurm job was cancelled from outside
    JobState.TIMEOUT: "job_timeout",  #: problem job_timeout: the Slurm job reached its time limit
    JobState.NODE_FAIL: "job_node_fail",  #: problem job_node_fail: a node failed; the message names it
    #: problem job_preempted: a job of higher priority took the nodes
    JobState.PREEMPTED: "job_preempted",
    #: problem job_suspended: the Slurm job was suspended during the run
    JobState.SUSPENDED: "job_suspended",
    JobState.OUT_OF_MEMORY: "job_out_of_memory",  #: problem job_out_of_memory: a task used too much memory
    JobState.LOST: "job_lost",
}  #: problem job_lost: Slurm forgot the job, stopped answering for it, requeued it, or reused its id
# Failures of healthy ranks after another one is gone.
_AFTERSHOCKS = ("connection", "peer", "socket", "broken pipe", "nccl", "timed out", "ownergone", "keyboardinterrupt")
_OUTPUT = Path(layout.OUTPUT).name


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Evidence):
    """The remains of a finished run."""

    folder: Path
    job: Job
    status: JobStatus
    # The report of the driver of a command; None for ranks of our own, or when it never began
    driver: DriverReport | None
    ended_by_us: Problem | None  # the problem for which the watch ended it, if it did
    restarted: tuple[str, ...] = ()  # nodes that were started again while it went on

    @property
    def logs(self) -> Path:
        """The folder of its logs."""
        return self.folder / layout.LOGS

    @property
    def reached(self) -> str:
        """The step that it reached, for people."""
        step = max((step.step for step in self.series.steps), default=0)
        return f"the run had reached step {step} of {self.recipe.steps}"


def cut_off(recipe: Recipe, limit_min: int, status: JobStatus, ended_by_us: Problem | None) -> str | None:
    """How a run that is meant to be cut off at its time limit, in minutes, ended; None if it ended otherwise."""
    if recipe.end != "time_limit":
        return None
    if ended_by_us is not None and ended_by_us.kind == "time_limit":
        return f"{CUT_OFF}{format_minutes(limit_min)}"
    return "Slurm ended it at its time limit" if status.state is JobState.TIMEOUT else None


def cause(outcome: Outcome) -> Problem | None:
    """The problem of a run, its log left aside."""
    if outcome.status.state is JobState.SUSPENDED:
        return _job_problem(outcome)
    if (problem := problem_of(outcome.driver)) is not None or outcome.cut_off is not None:
        return problem
    if problem := _started_again(outcome) or _stand_still(outcome) or _job_problem(outcome):
        return problem
    is_command = get_engine(outcome.recipe.engine).kind == "command"
    return _driver_problem(outcome) if is_command else _rank_problem(outcome)


def _stand_still(outcome: Outcome) -> Problem | None:
    """The problem of a run that the watch ended; a node that was restarted meanwhile explains missing ranks."""
    problem = outcome.ended_by_us
    return (problem and problem.kind in {"hang", "no_end", "no_start"} and _restarted(outcome)) or problem


def _restarted(outcome: Outcome) -> Problem | None:
    """Problem of a run whose ranks are gone without a word, if one of its nodes was started again meanwhile."""
    if not outcome.restarted:
        return None
    nodes = ",".join(outcome.restarted)
    reason = f"slurmd of {nodes} was started while the run went on, as after a loss of power"
    status = JobStatus(state=JobState.NODE_FAIL, reason=reason, nodelist=nodes)
    message = f"{describe_end(outcome.job.job_id, status)}; {outcome.reached}"
    return Problem(kind="job_node_fail", message=message, log=str(outcome.logs))


def _driver_problem(outcome: Outcome) -> Problem | None:
    """Problem of a command whose script failed to start, or to do all its work.

    One that fails afterwards, during shutdown, has done it; its record has the exit code.
    """
    driver, output = outcome.driver, outcome.folder / layout.OUTPUT
    if driver is None:
        log = log_to_read(outcome.logs)
        printed = last_words(log) if log.is_file() else ""
        words = [*outcome.job.last_words().splitlines()[-3:], printed, "nothing was printed"]
        how = outcome.status.reason or outcome.status.word or outcome.status.state
        message = f"the run's script was never started ({how}): {next(word for word in words if word)}"
        #: problem launch_failed: no rank, or no script, could be started, [nor again](#launches)
        return Problem(kind="launch_failed", message=message, log=str(outcome.logs))
    if driver.exit_code is None:
        if problem := _restarted(outcome):
            return problem
        message = f"the driver of the run's script on {driver.hosts[0]} died without a word (killed, or out of memory?)"
        return Problem(kind="rank_died", message=message, log=str(output))
    if driver.exit_code != 0 and outcome.series.completed is None:
        said = outcome.series.failure or last_words(output) or "it printed nothing"
        #: problem command_failed: the script failed before its log proves all work
        message = f"its script ended with exit code {driver.exit_code}: {said}; {outcome.reached}"
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
    return Problem(kind=JOB_ENDS[status.state], message=describe_end(job.job_id, known), log=str(outcome.logs))


def lost_nodes(outcome: Outcome, problem: Problem | None) -> tuple[str, ...]:
    """The nodes that the run lost: those that Slurm shows as failed, and the one that srun blames.

    A node that was mended within seconds is shown as healthy when Slurm is asked.
    """
    if problem is None or problem.kind != "job_node_fail":
        return ()
    job = outcome.job
    named = blamed_node(job.last_words(), job.hosts)
    lost = {*outcome.status.failed, *outcome.restarted, *((named,) if named is not None else ())}
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
    #: problem started_again: Slurm's controller forgot the first start of the job; the second measures nothing
    message = (
        f"Slurm started {job.title} a second time (its controller was killed before it had saved the first?): {how}"
    )
    return Problem(kind="started_again", message=message, log=str(outcome.logs))


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
    causes = [info for info in failed if not any(word in (info.failure or "").lower() for word in _AFTERSHOCKS)]
    if causes:
        return _rank_died(outcome, causes[0], f"{_rank(causes[0])} failed: {causes[0].failure}")
    if outcome.series.failure is not None:  # the others waited for it in vain
        return Problem(kind="rank_died", message=outcome.series.failure, log=str(log_to_read(outcome.logs)))
    if silent:
        return _restarted(outcome) or _died_silently(outcome, silent)
    if failed:
        return _rank_died(outcome, failed[0], f"{_rank(failed[0])} failed: {failed[0].failure}")
    if outcome.status.state is JobState.FAILED and len(outcome.series.ranks) < outcome.topology.world_size:
        # A rank that failed at its very start has the reason in its step log.
        reasons = [*outcome.series.unreadable[:1], *outcome.job.last_words().splitlines()[-1:], "nothing was printed"]
        started, how = len(outcome.series.ranks), outcome.status.reason or outcome.status.word
        message = f"{started} of {outcome.topology.world_size} ranks started ({how}): {reasons[0]}"
        return Problem(kind="launch_failed", message=message, log=str(log_to_read(outcome.logs)))
    return None


def _died_silently(outcome: Outcome, silent: Sequence[RankInfo]) -> Problem:
    #: problem rank_died: a rank ended with an error, or was killed; the message names it
    words = outcome.job.last_words()
    ranks = set[int]().union(*(ended.ranks for ended in first_to_end(words)))
    first = [info for info in silent if info.rank in ranks] or silent
    errors = [line for line in words.splitlines() if "error:" in line] or words.splitlines()
    said = f"; the launcher says: {' / '.join(errors[:3])}" if words else ""
    names = ", ".join(_rank(info) for info in first[:4])
    return _rank_died(outcome, first[0], f"{names} died without a word (killed, or out of memory?){said}")


def _rank(info: RankInfo) -> str:
    return f"rank {info.rank} on {info.host} (pid {info.pid})"


def _rank_died(outcome: Outcome, info: RankInfo, message: str) -> Problem:
    log = log_to_read(outcome.logs, info.rank)
    return Problem(kind="rank_died", message=f"{message}; {outcome.reached}", log=str(log))


def run_identity(run: RunSpec, settings: Settings, session: Session) -> RunIdentity:
    """The part of a run's record that is fixed before the run."""
    replayed, folder = run.replayed, session.run_folder(run.key)
    topology = settings.topology(run.recipe) if replayed is None else replayed.topology
    return RunIdentity(
        session=session.id,
        key=run.key,
        repeat=run.repeat,
        look=run.look,
        token=session.token,
        run_token=session.run_token(run.key),
        recipe=run.recipe,
        system=settings.system.name,
        cluster=settings.cluster,
        allocation=settings.allocation,
        nodes=topology.nodes,
        ranks=topology.world_size,
        gpus=topology.gpus,
        folder=str(folder),
        replayed=None if replayed is None else str(replayed.logs),
        as_recorded=None if replayed is None else replayed.as_recorded,
        # A session that is resumed may adopt a run that was started with it.
        simulated=str(settings.simulate) if settings.simulate else strikes(folder),
    )


def conclude(outcome: Outcome, settings: Settings) -> RunOutcome:
    """The part of a run's record that follows from its logs, its driver and its job."""
    evidence = with_expectations(outcome, settings.system)
    problem, driver = cause(outcome) or first_problem(evidence), outcome.driver
    due = settings.simulate is not None and settings.simulate.step is not None
    if problem is None and due and strikes(outcome.folder) is None:
        #: problem not_struck: the fault of `--llmbench-simulate` never struck
        message = f"--llmbench-simulate {settings.simulate} never struck: the run ended before; name an earlier step"
        problem = Problem(kind="not_struck", message=message)
    provenance = dict(driver.provenance) if driver is not None else {}
    if driver is not None and driver.exit_code is not None:
        provenance["exit_code"] = str(driver.exit_code)
    return conclude_logs(evidence, settings.system, problem, provenance)


def conclude_logs(
    evidence: Evidence, system: System, problem: Problem | None, provenance: Mapping[str, str]
) -> RunOutcome:
    """The part of a run's record that follows from its logs, with metrics for a verdict or as evidence alone."""
    measurement, series = measurement_of(evidence, system), evidence.series
    metrics = measure(measurement, statistics_of(get_engine(evidence.recipe.engine)))
    # A framework's clock may not wait for the GPU at each step, and be right over many; on a CPU the measured rate of
    # matrix products is too unsteady for a single step to be held against it.
    own_gpus = evidence.kind == "ranks" and evidence.topology.gpus
    timed = judged_steps(evidence.recipe, series.steps) if own_gpus else ()
    clocks = [clock_share(gpu, device_of(evidence) or "") for gpu in series.telemetry]
    problem = problem or implausible({**metrics, **_share_of_peak(evidence, measurement)}, timed, clocks)
    return RunOutcome(
        device=device_of(evidence),
        versions=series.ranks[0].versions if series.ranks else {},
        provenance=provenance,
        rank_info=series.ranks,
        cut_off=evidence.cut_off,
        early=evidence.early,
        steps=series.steps,
        totals=series.totals,
        telemetry=series.telemetry,
        times=series.times,
        unreadable=series.unreadable,
        metrics={} if problem else metrics,
        steady=None if problem else measurement.steady,
        # Logs of some ranks of ours are too little evidence; a framework's log covers all ranks.
        unjudged=metrics if problem and evidence.kind == "command" else {},
        findings=() if problem else (*findings_of(evidence), *long_start(measurement.steady)),
        transport=() if problem else evidence.series.transport,
        unconfirmed=() if problem else unconfirmed(evidence),
        settings=evidence.compared.summary,
        outside_steps=outside(evidence),
        problem=problem,
    )


def _share_of_peak(evidence: Evidence, measurement: Measurement) -> dict[str, Metric]:
    """The MFU by the published peak of the GPU, also if system file and scale leave it out of the statistics."""
    rate, peak = measurement.model_flops_per_s, evidence.peak_tflops
    if rate is None or peak is None:
        return {}
    share = 100 * rate / (1e12 * peak[1] * evidence.topology.gpus)
    return {"mfu": Metric(value=share, unit="%", rule="model FLOPs per second / published peak of this GPU model")}


def with_expectations(evidence: Evidence, system: System) -> Evidence:
    """Evidence of a launch or of logs, completed by what engine and system expect of it."""
    recipe, topology, gpu, device = evidence.recipe, evidence.topology, system.gpu, device_of(evidence)
    engine = get_engine(recipe.engine)
    return replace(
        evidence,
        gpu=gpu.model if gpu else None,
        kind=engine.kind,
        proof=engine.proof,
        doubts=tuple(engine.doubts(recipe, topology, evidence.series)),
        # Only for GPUs with a published peak.
        peak_tflops=published_tflops(device, recipe.precision, gpu) if topology.gpus and device else None,
        expected=engine.expected(recipe, topology),
        asks=engine.asks(recipe, topology),
        compared=engine.compare(recipe, topology, evidence.series),
    )


def device_of(evidence: Evidence) -> str | None:
    """Device of the ranks, where they or their launcher report it."""
    ranks = evidence.series.ranks
    return evidence.device or (ranks[0].device if ranks else None)


def measurement_of(evidence: Evidence, system: System) -> Measurement:
    """Put together what statistics are computed from."""
    recipe, topology, series = evidence.recipe, evidence.topology, evidence.series
    engine = get_engine(recipe.engine)
    peak = system.gpu.peak_tflops.get(recipe.precision) if system.gpu and topology.gpus else None
    return recount.measurement_of(
        recipe, series, gpus=topology.gpus, early=evidence.early, counts_flops=engine.uncounted(recipe) is None,
        peak_flops_per_s=peak * 1e12 * topology.gpus if peak else None,
    )  # fmt: skip


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
