"""Sessions in their folders that nothing ran: records of a real run, with other steps, nodes and verdicts."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, Point, timing
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Report, Severity
from pytest_llmbench.core.record.records import (
    Judgement,
    Metric,
    Problem,
    RecordedClause,
    RunRecord,
    SessionVerdicts,
    Timings,
    Verdict,
    write_model,
)
from pytest_llmbench.core.record.series import RankTimes, RunTimes, Step
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import GPU_PERIOD_S
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.recount import measurement_of_record
from pytest_llmbench.judging.sanity.steps import seconds_of
from pytest_llmbench.judging.statistics import judged_steps, steady_of
from pytest_llmbench.reporting.html import page
from pytest_llmbench.session.folder import read_folder

REAL = Path(__file__).parents[1] / "data" / "h200" / "runs" / "opt125m" / "record.json"
BEGAN, NODES, GPUS = 1_795_000_000.0, 8, 16
BOUND = Quantity("450000 words/s")
_TEST = "suites/training/test_training.py::test_reference"
_FIT = "suites/validation/test_validation.py::test_fit"


def run_record(session: Path, key: str, seed: int, *, slow: float = 1.0, steps: int | None = None) -> RunRecord:
    """A run of two nodes whose steps take as long as the real ones, but for noise, a pause and this factor."""
    chance, real = random.Random(seed), RunRecord.read(REAL)
    made = [_step(each, number, slow, chance) for number, each in enumerate(_of(real.steps, steps), 1)]
    hosts = (f"n{1 + 2 * (seed % 4)}", f"n{2 + 2 * (seed % 4)}")
    judged = judged_steps(real.recipe, made)
    steady = steady_of(judged)
    assert steady is not None
    tokens = float(made[-1].tokens or 0)
    seconds = sum(each.seconds or 0.0 for each in judged) / len(judged)
    throughput = real.metrics["throughput"].model_copy(update={"value": tokens / seconds})
    metrics: dict[str, Metric] = {
        **real.metrics,
        "throughput": throughput.model_copy(
            update={"sense": "rate", "amount": tokens, "low": tokens / steady.high, "high": tokens / steady.low}
        ),
    }
    telemetry = [
        real.telemetry[0].model_copy(
            update={
                "rank": rank, "gpu": f"GPU-{seed}-{rank}", "power_w": 650.0 + chance.random() * 40,
                "sm_clock_mhz": 1100.0 if rank == 5 and slow > 1.0 else 1800.0 + chance.random() * 60,
                "throttled": 40 if rank == 5 and slow > 1.0 else 0, "temperature_max_degc": 55.0 + chance.random() * 9,
            }
        ) for rank in range(GPUS)
    ]  # fmt: skip
    times = RunTimes(
        steps=len(judged),
        ranks=tuple(
            RankTimes(rank=rank, seconds=seconds, phases={
                "data": 0.002, "forward": seconds * 0.3, "backward": seconds * 0.5, "device": seconds * 0.15,
                "optimizer": seconds * 0.03,
            }) for rank in range(GPUS)
        ),
    )  # fmt: skip
    return agreed(real.model_copy(
        update={
            "session": session.name, "key": key, "folder": str(session / "runs" / key), "hosts": hosts, "nodes": 2,
            "gpus": GPUS, "ranks": GPUS, "steps": tuple(made), "steady": steady, "metrics": metrics, "times": times,
            "telemetry": tuple(telemetry), "cluster": "slurm", "system": "H200",
            "job_id": str(4000 + seed),
            "timings": Timings(submitted=BEGAN, started=BEGAN + 5, ended=BEGAN + max(80, 10 + seconds_of(made))),
            "judgements": tuple(_judgements(key, tokens / seconds)),
        }
    ))  # fmt: skip


def agreed(record: RunRecord) -> RunRecord:
    """A record whose other times are those of its steps."""
    seconds, judged = (seconds_of(steps) for steps in (record.steps, judged_steps(record.recipe, record.steps)))
    ranks, infos = range(record.ranks), record.rank_info * (record.ranks if len(record.rank_info) == 1 else 1)
    sums = [info.steps and info.steps.model_copy(
        update={"count": len(record.steps), "seconds": seconds, "ended": info.steps.began + seconds}
    ) for info in infos]  # fmt: skip
    return record.model_copy(update={
        "rank_info": tuple(info.model_copy(update={"rank": rank, "steps": one})
                           for rank, info, one in zip(ranks, infos, sums, strict=False)),
        "outside_steps": {**record.outside_steps, **({"steps_s": seconds} if record.outside_steps else {})},
        "telemetry": tuple(gpu.model_copy(update={
            "seconds": judged, "samples": round(judged / GPU_PERIOD_S),
            "energy_j": None if gpu.power_w is None else gpu.power_w * judged,
        }) for gpu in record.telemetry),
    })  # fmt: skip


def measured_anew(plain: dict[str, Any]) -> dict[str, Any]:
    """A record whose steps were changed, with the numbers and times that its steps give now."""
    record = agreed(RunRecord.model_validate(plain))
    plain = {**plain, **{name: json.loads(record.model_dump_json())[name]
                         for name in ("rank_info", "outside_steps", "telemetry")}}  # fmt: skip
    statistics, again = statistics_of(get_engine(record.recipe.engine)), measurement_of_record(record)
    for name, metric in plain["metrics"].items():
        value = statistics[name].compute(again)
        plain["metrics"][name] = metric if value is None else {**metric, "value": value}
    return plain


def _of(steps: tuple[Step, ...], wanted: int | None) -> list[Step]:
    return [steps[number if number < len(steps) else 10 + number % 40] for number in range(wanted or len(steps))]


def _step(real: Step, number: int, slow: float, chance: random.Random) -> Step:
    seconds = (real.seconds or 0.0) * slow * (1.0 + chance.gauss(0.0, 0.006))
    if number == 31:
        seconds *= 1.6
    loss = None if real.loss is None else real.loss + chance.gauss(0.0, 0.01)
    return real.model_copy(update={"step": number, "seconds": seconds, "loss": loss, "ranks": GPUS})


def _judgements(key: str, rate: float, host: str = "n2") -> list[Judgement]:
    fast = Verdict.PASS if rate >= BOUND.value else Verdict.FAIL
    clocks = f"clocks: GPU 5 of {host} ran at 1,100 MHz, the others at 1,830 MHz"
    missed = f"measured {Quantity(rate, 'words/s')} is below the threshold {BOUND}"
    return [
        Judgement(
            test=f"{_TEST}[{key}-h200]", verdict=fast, statistic="throughput", measured=f"{rate!r} words/s",
            threshold=f">= {BOUND.plain}", reference="h200", reason=missed if fast is Verdict.FAIL else None,
            cause=clocks if fast is Verdict.FAIL else None,
        ),
        Judgement(
            test=f"{_TEST}[{key}-loss_falls]", verdict=Verdict.PASS, statistic="loss_drop", measured="2.1 nat",
            threshold=">= 0.1 nat", reference="loss_falls",
        ),
    ]  # fmt: skip


def broken_run(session: Path, key: str, message: str) -> RunRecord:
    """A run whose rank died."""
    problem = Problem(kind="rank_died", message=message, log=None)
    judged = Judgement(
        test=f"{_TEST}[{key}-h200]", verdict=Verdict.ERROR, threshold=f">= {BOUND.plain}", reason=message
    )
    made = run_record(session, key, 3)
    return made.model_copy(update={"problem": problem, "metrics": {}, "steady": None, "judgements": (judged,)})


def check_records(session: Path, nodes: int = NODES, plain: Sequence[str] = ("limits",)) -> list[HealthRecord]:
    """Checks of nodes: a collective beside its references, pairs with a slow node, one without a bound, plain ones."""
    hosts = tuple(f"n{number}" for number in range(1, nodes + 1))
    curve = Curve(collective="all_reduce", ranks=8 * nodes, nodes=nodes, gpus=8 * nodes, complete=True, points=tuple(
        Point(size=1 << power, count=1 << (power - 2), dtype="float32", redop="sum",
              out_of_place=timing("all_reduce", 1 << power, 64, 24.0 + (1 << power) / 210e3, 0),
              in_place=timing("all_reduce", 1 << power, 64, 25.0 + (1 << power) / 205e3, 0))
        for power in range(3, 34)
    ))  # fmt: skip
    bounds = [
        Reference.model_validate({
            "name": "nccl_8gib", "statistic": statistic, "at_least": bound, "why": "measured at acceptance",
            "source": "supplier", "date": "2026-01-05", "applies_to": {"system": "H200"},
        }) for statistic, bound in (("busbw_8GiB", "380 GB/s"), ("busbw_1MiB", "40 GB/s"), ("busbw_peak", "390 GB/s"))
    ]  # fmt: skip
    pairs = [
        Reading(subject=f"{one} - {two}", statistic="pair_busbw", unit="GB/s", nodes=2, gpus=16,
                value=(190.0 if "n6" in {one, two} else 372.0) + (3 * at + 7 * other) % 11)
        for at, one in enumerate(hosts) for other, two in enumerate(hosts) if at < other
    ]  # fmt: skip
    slow = Finding(
        host="n6", kind="slow_node", severity=Severity.ISOLATE, message="bad in 7 of 7 pairs, median 194.2 GB/s",
        action="take the node out; check its cables", measured="194.2 GB/s", threshold=">= 350 GB/s",
    )  # fmt: skip
    gemm = [
        Reading(
            host=host, subject=f"GPU {gpu}", statistic="gemm_bf16", value=690.0 + (gpu * 3) % 7, unit="TFLOP/s/gpu",
            gpus=1,
        )
        for host in hosts for gpu in range(8)
    ]  # fmt: skip
    reports = {
        "all_reduce": ("collectives", "cluster", Report(evidence={
            "curve": curve.model_dump(mode="json"), "references": [each.model_dump(mode="json") for each in bounds],
        })),
        "pairs": ("network", "cluster", Report(
            findings=(slow,), readings=tuple(pairs), evidence={"floor_gb_s": 350.0})),
        "gemm": ("compute", "node", Report(
            readings=tuple(gemm), unbounded=True, notes=("no reference bounds gemm_bf16",))),
        "gpu_xid": ("gpu", "node", Report(findings=(Finding(
            host="n3", subject="GPU 2", kind="xid", severity=Severity.REBOOT,
            message="Xid 79: the GPU fell off the bus",
            action="reboot the node"),), unjudged={"n7": "its kernel log cannot be read: permission denied"})),
        **{name: ("host", "node", Report()) for name in plain},
        "dcgm": ("dcgm", "node", Report(skip="dcgmi is not installed on any node")),
    }  # fmt: skip
    found = []
    for name, (family, scope, report) in reports.items():
        record = HealthRecord.model_validate({
            "session": session.name, "token": "t", "system": "H200", "cluster": "slurm", "schema_version": 1,
            "folder": str(session / "checks" / name), "job_id": "4000", "hosts": hosts, "check": name,
            "family": family, "scope": scope, "gpus_per_node": 8, "report": report,
            "timings": Timings(started=BEGAN - 300, ended=BEGAN - 200),
        })  # fmt: skip
        slots: list[int | None] = [*range(nodes)] if scope == "node" else [None]
        judged = []
        for slot in slots:
            verdict, why = record.state(slot)
            judged.append(Judgement(test=_fit(name, slot), verdict=verdict, reason=why or None))
        found.append(record.model_copy(update={"judgements": tuple(judged)}))
    return found


def _fit(check: str, slot: int | None) -> str:
    return f"{_FIT}[{check}]" if slot is None else f"{_FIT}[{check}-slot{slot}]"


def write_session(folder: Path, runs: list[RunRecord], checks: list[HealthRecord], *, clauses: bool = False) -> None:
    """Write the files of a session that ended: plan, records and verdicts."""
    tests = [Declared(test=judged.test, run=run.key) for run in runs for judged in run.judgements]
    tests += [
        Declared(test=judged.test, check=check.check, slot=slot if check.scope == "node" else None)
        for check in checks for slot, judged in enumerate(check.judgements)
    ]  # fmt: skip
    specs = tuple(RunSpec(key=run.key, recipe=run.recipe) for run in runs)
    write_model(folder / layout.PLAN, Plan(runs=specs, checks=tuple(each.check for each in checks), tests=tuple(tests)))
    for record in (*runs, *checks):
        write_model(folder / layout.FOLDERS[record.about] / record.name / layout.RECORD, record)
    write_verdicts(folder, runs, checks, clauses=clauses)


def write_verdicts(
    folder: Path, runs: list[RunRecord], checks: list[HealthRecord], *, clauses: bool = False
) -> SessionVerdicts:
    """Write the file of verdicts as a session does, with one clause that is INCOMPLETE where asked for."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        for judged in run.judgements:
            value, _, unit = (judged.measured or "").partition(" ")
            measured = {"value": float(value), "unit": unit, "judged_by": "interval"} if value else {}
            rows.append(
                {"test": judged.test, "run": run.key, "hosts": ",".join(run.hosts), **measured, **_told(judged)}
            )
    for check in checks:
        bound = {"bound": "no bound"} if check.report.unbounded else {}
        for slot, judged in enumerate(check.judgements):
            host = check.hosts[slot] if check.scope == "node" else ",".join(check.hosts)
            rows.append({"test": judged.test, "check": check.check, "hosts": host, **bound, **_told(judged)})
    told = RecordedClause(
        name="4.10", tests=("test_reference[nlp13b-*]",), verdict=Verdict.INCOMPLETE, reason="it was skipped"
    )
    verdicts = SessionVerdicts(
        session=folder.name, facts={"system": "H200", "cluster": "slurm", "scale": "full", "llmbench_version": "0.1.0"},
        tests=tuple(rows), clauses=(told,) if clauses else (),
    )  # fmt: skip
    write_model(folder / layout.VERDICTS, verdicts)
    return verdicts


def _told(judged: Judgement) -> dict[str, Any]:
    told = judged.model_dump(mode="json", include={"verdict", "statistic", "threshold", "reference", "reason", "cause"})
    return {name: value for name, value in told.items() if value is not None}


def write_page(folder: Path) -> Path:
    """Write the report of a session from its folder alone."""
    page.write_page(read_folder(folder), folder / layout.PAGE)
    return folder / layout.PAGE


def write_every_kind(folder: Path) -> None:
    """Write a session of three runs and six checks, with a verdict and a figure of every kind."""
    runs = [run_record(folder, "good", 0), run_record(folder, "slow", 1, slow=1.12)]
    write_session(folder, [*runs, broken_run(folder, "dead", "it died")], check_records(folder), clauses=True)


def write_fleet(folder: Path, nodes: int, checks: Sequence[str]) -> None:
    """Write a session of checks on nodes n1, n2, ... and of a run on each of them: that on n37 is slow."""
    patterns = [run_record(folder, "run", 0, steps=60, slow=slow) for slow in (1.0, 1.2)]
    runs = []
    for number in range(1, nodes + 1):
        pattern, key = patterns[number == 37], f"opt125m-group{number}"
        rate = pattern.metrics["throughput"].value * (1.02 + 0.002 * (number % 5))
        runs.append(pattern.model_copy(update={
            "key": key, "folder": str(folder / "runs" / key), "hosts": (f"n{number}",), "nodes": 1,
            "judgements": tuple(_judgements(key, rate, f"n{number}")),
        }))  # fmt: skip
    write_session(folder, runs, check_records(folder, nodes, checks))


def write_large(folder: Path, count: int, steps: int) -> None:
    """Write a session of very many runs, each with steps of its own; records are copied as text, to be quick."""
    chance = random.Random(1)
    patterns = [
        run_record(folder, f"run{seed}", seed, slow=1.2 if seed == 7 else 1.0, steps=steps) for seed in range(8)
    ]
    runs = []
    for number in range(count):
        pattern = patterns[number % 8]
        key = f"opt125m-group{number + 1}"
        judged = [each.model_copy(update={"test": each.test.replace(pattern.key, key)}) for each in pattern.judgements]
        runs.append(
            pattern.model_copy(update={"key": key, "folder": str(folder / "runs" / key), "judgements": tuple(judged)})
        )
    write_session(folder, [], [])
    tests = [Declared(test=judged.test, run=run.key) for run in runs for judged in run.judgements]
    # One recipe: a plan of 2,000 of them is 10 MB that nothing of the report depends on.
    write_model(folder / layout.PLAN, Plan(runs=(), tests=tuple(tests)))
    write_verdicts(folder, runs, [])
    whole = [json.loads(pattern.model_dump_json()) for pattern in patterns]
    for number, run in enumerate(runs):
        data = {**whole[number % 8], "key": run.key, "folder": run.folder,
                "judgements": [json.loads(each.model_dump_json()) for each in run.judgements]}  # fmt: skip
        for step in data["steps"]:
            step["seconds"] *= 1.0 + chance.gauss(0.0, 0.002)
        place = Path(run.folder)
        (place / layout.LOGS).mkdir(parents=True)
        (place / layout.OUTPUT).write_text("".join(f"step {step} of {run.key}: all is well\n" for step in range(200)))
        (place / layout.RECORD).write_text(json.dumps(data))
