"""From a run that is over to its record: what went wrong, or what it measured."""

from __future__ import annotations

from typing import Any

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System, published_tflops
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Metric, Problem
from pytest_llmbench.core.wire.driver import DriverReport
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.findings.gather import findings as findings_of
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible, outside
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.session.ending.causes import Outcome, cause


def identity_of(run: RunSpec, topology: Topology, settings: Settings, session: Session) -> dict[str, Any]:
    """Fields of a run's record that do not depend on its outcome."""
    return {
        "session": session.id,
        "key": run.key,
        "token": session.token,
        "run_token": session.run_token(run.key),
        "recipe": run.recipe,
        "system": settings.system.name,
        "cluster": settings.cluster,
        "allocation": settings.allocation,
        "nodes": topology.nodes,
        "ranks": topology.world_size,
        "gpus": topology.gpus,
        "folder": str(session.run_folder(run.key)),
    }


def findings(outcome: Outcome, settings: Settings) -> dict[str, Any]:
    """Fields of a run's record about its outcome: ranks, steps, versions, and metrics or the problem."""
    evidence = _evidence(outcome, settings)
    problem = cause(outcome) or first_problem(evidence)
    ranks, driver = outcome.series.ranks, outcome.driver
    device = _device(outcome)
    found = judged(evidence, settings.system, problem)
    return found | {
        "hosts": driver.hosts if driver else outcome.job.hosts,
        "device": device,
        "versions": ranks[0].versions if ranks else {},
        "provenance": _provenance(driver),
        "rank_info": ranks,
        "cut_off": outcome.cut_off,
    }


def _provenance(driver: DriverReport | None) -> dict[str, str]:
    if driver is None:
        return {}
    code = {} if driver.exit_code is None else {"exit_code": str(driver.exit_code)}
    return {**driver.provenance, **code}


def judged(evidence: Evidence, system: System, problem: Problem | None) -> dict[str, Any]:
    """Fields of a record about a log: its steps, and its metrics, for a verdict or as evidence alone."""
    measurement, series = _measurement(evidence, system), evidence.series
    metrics = measure(measurement, statistics_of(get_engine(evidence.recipe.engine)))
    # A framework's clock may not wait for the GPU at each step, and be right over many; on a CPU the measured rate of
    # matrix products is too unsteady for a single step to be held against it.
    own_gpus = evidence.kind == "ranks" and evidence.topology.gpus
    timed = judged_steps(evidence.recipe, series.steps) if own_gpus else ()
    problem = problem or implausible({**metrics, **_share_of_peak(evidence, measurement)}, timed)
    spent = outside(evidence)
    return {
        "steps": series.steps,
        "totals": series.totals,
        "telemetry": series.telemetry,
        "unreadable": series.unreadable,
        "metrics": {} if problem else metrics,
        # Half of the ranks' own logs are no evidence of anything; a framework's log is the same for all ranks.
        "unjudged": metrics if problem and evidence.kind == "command" else {},
        "findings": () if problem else findings_of(evidence, metrics, _machine(evidence, system)),
        "outside_steps": spent.told if spent else {},
        "problem": problem,
    }


def _machine(evidence: Evidence, system: System) -> Machine:
    ranks, topology = evidence.series.ranks, evidence.topology
    return Machine(
        system=system.name,
        device=evidence.device or (ranks[0].device if ranks else "unknown"),
        gpus=topology.gpus,
        nodes=topology.nodes,
        scale=evidence.recipe.scale,
    )


def _share_of_peak(evidence: Evidence, measurement: Measurement) -> dict[str, Metric]:
    """The MFU by the GPU's published peak, also where no system file or scale gives it a meaning as a statistic."""
    rate, peak = measurement.model_flops_per_s, evidence.peak_tflops
    if rate is None or peak is None:
        return {}
    share = 100 * rate / (1e12 * peak[1] * evidence.topology.gpus)
    return {"mfu": Metric(value=share, unit="%", rule="model FLOPs per second / published peak of this GPU model")}


def _evidence(outcome: Outcome, settings: Settings) -> Evidence:
    gpu, engine = settings.system.gpu, get_engine(outcome.recipe.engine)
    return Evidence(
        recipe=outcome.recipe,
        topology=outcome.topology,
        series=outcome.series,
        hosts=outcome.job.hosts,
        wall_s=outcome.wall_s,
        gpu=gpu.model if gpu else None,
        kind=engine.kind,
        device=outcome.driver.device if outcome.driver else None,
        proof=engine.proof,
        cut_off=outcome.cut_off,
        doubts=tuple(engine.doubts(outcome.recipe, outcome.topology, outcome.series)),
        origin=outcome.origin,
        peak_tflops=peak_of(outcome.recipe, outcome.topology, settings.system, _device(outcome)),
        expected=engine.expected(outcome.recipe, outcome.topology),
        asks=engine.asks(outcome.recipe, outcome.topology),
    )


def _device(outcome: Outcome) -> str | None:
    """Device of the ranks."""
    if outcome.driver:
        return outcome.driver.device
    return outcome.series.ranks[0].device if outcome.series.ranks else None


def peak_of(recipe: Recipe, topology: Topology, system: System, device: str | None) -> tuple[float, float] | None:
    """The lowest and highest published peak of a run's GPU, TFLOP/s; None on CPUs, and if no peak is published."""
    return published_tflops(device, recipe.precision, system.gpu) if topology.gpus and device else None


def _measurement(evidence: Evidence, system: System) -> Measurement:
    """Put together what statistics are computed from."""
    recipe, topology, series = evidence.recipe, evidence.topology, evidence.series
    engine = get_engine(recipe.engine)
    peak = system.gpu.peak_tflops.get(recipe.precision) if system.gpu and topology.gpus else None
    rates = [info.matmul_flops_per_s for info in series.ranks]
    return Measurement(
        recipe=recipe,
        steps=series.steps,
        judged=judged_steps(recipe, series.steps),
        unread=series.unread,
        gpus=topology.gpus,
        totals=series.totals,
        telemetry=series.telemetry,
        counts_flops=engine.counts_flops(recipe),
        matmul_flops_per_s=sum(rate for rate in rates if rate) if rates and all(rates) else None,
        peak_flops_per_s=peak * 1e12 * topology.gpus if peak else None,
    )
