"""The judged steps of a run as one benchmark of pytest-benchmark, a round per step.

It builds pytest-benchmark's internal `Metadata`, the only way to add a measurement that was made elsewhere.
"""

from types import SimpleNamespace
from typing import Any

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.judging.statistics import judged_steps


def add_rounds(benchmarks: list[Any], record: RunRecord) -> None:
    """Append a sane run to `BenchmarkSession.benchmarks`: each judged step's seconds are a round of one iteration."""
    if record.problem is not None:
        return
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - an optional plugin

    fixture = SimpleNamespace(
        name=record.key,
        fullname=f"llmbench::{record.key}",
        group=f"{record.system}, nodes {record.nodes}, scale {record.recipe.scale}",
        param=record.key,
        params={"recipe": record.recipe.name},
        extra_info={name: f"{metric.quantity}" for name, metric in record.metrics.items()}
        | {"hosts": ",".join(record.hosts), "job_id": record.job_id, "run_record": str(record.path)},
        cprofile_stats=None,
        has_error=False,
    )
    benchmark = Metadata(fixture, 1, {"min_rounds": record.recipe.steps - record.recipe.warm_up.steps})
    for step in judged_steps(record.recipe, record.steps):
        if step.seconds is not None:
            benchmark.stats.update(step.seconds)
    benchmarks.append(benchmark)
