"""From a run that is over to its record: what went wrong, or what it measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.allocation import ended
from pytest_llmbench.cluster.jobs import Job
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm import JobState, JobStatus
from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.records import Metric, Problem
from pytest_llmbench.core.series import RankInfo, StepSeries
from pytest_llmbench.core.topology import Topology
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure

# Ends that are about the job and not about the program in it.
_JOB_ENDS = {
    JobState.CANCELLED,
    JobState.TIMEOUT,
    JobState.NODE_FAIL,
    JobState.PREEMPTED,
    JobState.OUT_OF_MEMORY,
    JobState.LOST,
}
# What a healthy rank says when another one is gone; never the cause.
_AFTERSHOCKS = (
    "connection",
    "peer",
    "socket",
    "broken pipe",
    "nccl",
    "timed out",
    "ownergone",
    "keyboardinterrupt",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a finished run left behind.

    Attributes:
        ended_by_us: why the watch ended it, if it did.
        wall_s: from launch to end by our clock, seconds.
    """

    recipe: Recipe
    topology: Topology
    folder: Path
    job: Job
    status: JobStatus
    series: StepSeries
    ended_by_us: Problem | None
    wall_s: float


def findings(outcome: Outcome, settings: Settings) -> dict[str, Any]:
    """What a run's record says of its outcome: ranks, steps, versions, and metrics or the problem."""
    metrics, problem = conclude(outcome, settings)
    ranks = outcome.series.ranks
    return {
        "versions": ranks[0].versions if ranks else {},
        "rank_info": ranks,
        "steps": outcome.series.steps,
        "metrics": metrics,
        "problem": problem,
    }


def conclude(outcome: Outcome, settings: Settings) -> tuple[Mapping[str, Metric], Problem | None]:
    """Return the metrics of a sane run, or none of them and the problem."""
    problem = outcome.ended_by_us or _job_problem(outcome) or _rank_problem(outcome) or _insane(outcome, settings)
    if problem is not None:
        return {}, problem
    metrics = measure(_measurement(outcome, settings))
    problem = implausible(metrics)
    return ({}, problem) if problem else (metrics, None)


def _job_problem(outcome: Outcome) -> Problem | None:
    status, job = outcome.status, outcome.job
    if status.state not in _JOB_ENDS:
        return None
    # Slurm may stop answering for a job that did all its work: then the ranks' own word counts.
    if status.state is JobState.LOST and len(_finished(outcome.series)) == outcome.topology.world_size:
        return None
    nodes = status.nodelist or ",".join(job.hosts)
    return Problem(
        kind=f"job_{status.state.lower()}",
        message=ended(job.job_id or "", status.word or status.state, status.reason, nodes),
        log=str(outcome.folder / "logs"),
    )


def _rank_problem(outcome: Outcome) -> Problem | None:
    """Name the rank that ended the run, and keep apart those that only followed it."""
    failed = sorted((info for info in outcome.series.ranks if info.failure), key=lambda info: info.failed_at or 0.0)
    silent = [info for info in outcome.series.ranks if not info.ended and not info.failure]
    causes = [info for info in failed if not _is_aftershock(info.failure or "")]
    if causes:
        return _told(outcome, causes[0], f"{_rank(causes[0])} failed: {causes[0].failure}")
    if silent:
        words = outcome.job.last_words()
        said = f"; the launcher says: {' / '.join(words.splitlines()[:3])}" if words else ""
        names = ", ".join(_rank(info) for info in silent[:4])
        return _told(outcome, silent[0], f"{names} died without a word (killed, or out of memory?){said}")
    if failed:
        return _told(outcome, failed[0], f"{_rank(failed[0])} failed: {failed[0].failure}")
    if outcome.status.state is JobState.FAILED and len(outcome.series.ranks) < outcome.topology.world_size:
        # A rank that failed before it could introduce itself has said so in its step log.
        told = [*outcome.series.unreadable[:1], *outcome.job.last_words().splitlines()[-1:], "nothing was printed"]
        return Problem(
            kind="launch_failed",
            message=f"{len(outcome.series.ranks)} of {outcome.topology.world_size} ranks started "
            f"({outcome.status.reason or outcome.status.word}): {told[0]}",
            log=str(rank_log(outcome.folder / "logs", 0) or outcome.folder / "logs"),
        )
    return None


def _insane(outcome: Outcome, settings: Settings) -> Problem | None:
    gpu = settings.system.gpu
    evidence = Evidence(
        recipe=outcome.recipe,
        topology=outcome.topology,
        series=outcome.series,
        hosts=outcome.job.hosts,
        wall_s=outcome.wall_s,
        gpu=gpu.model if gpu else None,
    )
    return first_problem(evidence)


def _measurement(outcome: Outcome, settings: Settings) -> Measurement:
    recipe, topology, series = outcome.recipe, outcome.topology, outcome.series
    gpu = settings.system.gpu
    peak = gpu.peak_tflops.get(recipe.precision) if gpu and topology.gpus else None
    rates = [info.matmul_flops_per_s for info in series.ranks]
    return Measurement(
        recipe=recipe,
        steps=series.steps,
        judged=judged_steps(recipe, series.steps),
        gpus=topology.gpus,
        matmul_flops_per_s=sum(rate for rate in rates if rate) if all(rates) else None,
        peak_flops_per_s=peak * 1e12 * topology.gpus if peak else None,
    )


def _finished(series: StepSeries) -> list[RankInfo]:
    return [info for info in series.ranks if info.ended]


def _is_aftershock(failure: str) -> bool:
    return any(word in failure.lower() for word in _AFTERSHOCKS)


def _rank(info: RankInfo) -> str:
    return f"rank {info.rank} on {info.host} (pid {info.pid})"


def _told(outcome: Outcome, info: RankInfo, message: str) -> Problem:
    step = max((step.step for step in outcome.series.steps), default=0)
    log = rank_log(outcome.folder / "logs", info.rank)
    return Problem(
        kind="rank_died",
        message=f"{message}; the run had reached step {step} of {outcome.recipe.steps}",
        log=str(log or outcome.folder / "logs"),
    )


def rank_log(logs: Path, rank: int) -> Path | None:
    """The file with what one rank printed, as srun steps or submitit name it."""
    for pattern in (f"rank-{rank}.log", f"*_{rank}_log.err"):
        for path in sorted(logs.glob(pattern)):
            return path
    return None
