"""The facts that a test's report carries as properties: plain text and numbers, which cross xdist and become XML."""

from typing import Any

from pytest_llmbench.cluster.runs import Declared, repeat_key
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord


def known(**facts: Any) -> dict[str, Any]:
    """The facts that are not None."""
    return {name: fact for name, fact in facts.items() if fact is not None}


def place_of(test: Declared) -> dict[str, Any]:
    """Properties of the place of a test: its node id, its file relative to pytest's root folder, and its line."""
    return known(test=test.test, file=test.file, line=test.line)


def facts_of_run(record: RunRecord, repeats: int = 1, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its run, the first of `repeats` that are judged together.

    Those of its evidence are left out unless it was made.
    """
    runs = [repeat_key(record.key, number) for number in range(1, repeats + 1)]
    facts = known(
        runs=",".join(runs) if repeats > 1 else None, run=record.key, recipe=record.recipe.name,
        scale=record.recipe.scale, system=record.system, cluster=record.cluster, nodes=record.nodes,
        ranks=record.ranks, gpus=record.gpus, simulated=record.simulated, as_recorded=record.as_recorded,
    )  # fmt: skip
    if not made:
        return facts
    facts |= known(
        hosts=",".join(record.hosts), job_id=record.job_id or "", run_record=str(record.path),
        record=record.within_session, run_seconds=_seconds(record), log=str(record.logs),
        findings="; ".join(record.findings), unconfirmed="; ".join(record.unconfirmed) or None,
        settings=record.settings, trained=record.trained, superseded="; ".join(record.superseded) or None,
    )  # fmt: skip
    if (early := record.early) is not None:
        facts |= {
            "early_verdict": str(early), "steps_done": early.done, "steps_planned": early.planned,
            "hours_saved": f"{early.hours_saved:.4g} {early.unit}",
            "hours_spent": f"{early.hours_spent:.4g} {early.unit}",
        }  # fmt: skip
    return facts


def facts_of_check(record: HealthRecord, slot: int | None, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its check, and its node or all of them.

    Those of its evidence are left out unless it was made.
    """
    host = record.host(slot)
    facts: dict[str, Any] = {
        "check": record.check, "family": record.family, "slot": "" if slot is None else slot, "host": host or "",
        "hosts": host or ",".join(record.hosts), "system": record.system, "cluster": record.cluster,
        "nodes": 1 if slot is not None else len(record.hosts),
    }  # fmt: skip
    if made:
        facts |= known(
            job_id=record.job_id or "", health_record=str(record.path), record=record.within_session,
            run_seconds=_seconds(record),
        )  # fmt: skip
    return facts


def _seconds(record: RunRecord | HealthRecord) -> float | None:
    return round(record.took_s, 3) if record.took_s > 0.0 else None


def facts_of_reference(reference: Reference) -> dict[str, Any]:
    """Properties of a test's report about the threshold that it applies."""
    xfail = None if reference.xfail is None else str(reference.xfail)
    return known(
        reference=reference.name, statistic=reference.statistic, threshold=reference.threshold,
        floor=reference.floor_for, xfail=xfail,
    )  # fmt: skip
