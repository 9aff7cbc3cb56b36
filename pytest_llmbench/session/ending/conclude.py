"""From a run that is over to its record: what went wrong, or what it measured."""

from collections.abc import Mapping
from dataclasses import replace

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System, published_tflops
from pytest_llmbench.core.record.records import Metric, Problem, RunIdentity, RunOutcome
from pytest_llmbench.core.wire.driver import DriverReport
from pytest_llmbench.core.wire.fault import strikes
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging import recount
from pytest_llmbench.judging.findings import findings as findings_of
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible, outside
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.session.ending.causes import Outcome, cause


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
        # A session that is resumed may adopt a run that was started with it.
        simulated=str(settings.simulate) if settings.simulate else strikes(folder),
    )


def conclude(outcome: Outcome, settings: Settings) -> RunOutcome:
    """The part of a run's record that follows from its logs, its driver and its job."""
    evidence = with_expectations(outcome, settings.system)
    problem = cause(outcome) or first_problem(evidence) or _fault_without_effect(outcome, settings)
    return conclude_logs(evidence, settings.system, problem, _provenance(outcome.driver))


def _fault_without_effect(outcome: Outcome, settings: Settings) -> Problem | None:
    """Problem of a run that passed because its fault failed to come."""
    if settings.simulate is None or strikes(outcome.folder) is not None:
        return None
    #: problem not_struck: the fault of `--llmbench-simulate` never struck: the run ended before, or cannot have it
    message = f"--llmbench-simulate {settings.simulate} never struck: the run ended before; name an earlier step"
    return Problem(kind="not_struck", message=message)


def _provenance(driver: DriverReport | None) -> dict[str, str]:
    if driver is None:
        return {}
    code = {} if driver.exit_code is None else {"exit_code": str(driver.exit_code)}
    return {**driver.provenance, **code}


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
    problem = problem or implausible({**metrics, **_share_of_peak(evidence, measurement)}, timed)
    spent = outside(evidence)
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
        findings=() if problem else findings_of(evidence),
        outside_steps=spent.known if spent else {},
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
        recipe, series, gpus=topology.gpus, early=evidence.early, counts_flops=engine.counts_flops(recipe),
        peak_flops_per_s=peak * 1e12 * topology.gpus if peak else None,
    )  # fmt: skip
