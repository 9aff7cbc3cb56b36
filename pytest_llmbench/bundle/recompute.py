"""A run judged once more by its raw logs, and how its record differs from what the logs say."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, read_report
from pytest_llmbench.core.wire.foreign import REDACTED
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.session.ending.conclude import conclude_logs, with_expectations

# Fields of a record that follow from the logs.
_COMPUTED = (
    "device", "versions", "rank_info", "steps", "totals", "telemetry", "times", "unreadable", "metrics", "steady",
    "outside_steps", "unjudged", "findings",
)  # fmt: skip
# How a number is computed is told in the words of the version that did it.
_WORDS = {"rule"}
# The mathematical functions of another machine may round the last digit otherwise.
_TOLERANCE = 1e-9


class NotRecomputableError(Exception):
    """The logs of a run cannot be read here; the message says why."""


def judged_again(
    record: RunRecord, folder: Path, logs: Path | None, system: System
) -> tuple[RunRecord, Problem | None]:
    """Read the raw logs of a run, and judge them.

    Args:
        record: its record. The recipe, the hosts, the times of its launch and a problem that is about its job are
            taken from there.
        folder: its folder.
        logs: its logs, if they were replayed.
        system: the session's.

    Returns:
        The record as the logs have it, and the problem that they show, also where the record has another one.

    Raises:
        NotRecomputableError: its engine is not installed.
        ConfigError: a file of it cannot be read.
        OSError: likewise.
    """
    try:
        engine = get_engine(record.recipe.engine)
    except ConfigError as error:
        raise NotRecomputableError(f"its engine cannot be used here: {error}") from error
    started, ended = record.timings.submitted, record.timings.ended
    driver = read_report(folder)
    # Ranks of our own say themselves on which device they were; the driver of a command does.
    device = None if engine.kind == "ranks" and logs is None else driver.device if driver is not None else record.device
    topology = _topology(record)
    has_token = record.schema_version > 1 or engine.kind == "ranks"
    told = Evidence(
        recipe=record.recipe, topology=topology, hosts=record.hosts,
        series=engine.read(logs or folder, record.recipe), device=device, cut_off=record.cut_off, early=record.early,
        wall_s=ended - started if started and ended and ended > started else None,
        origin=Origin(token=record.run_token if has_token else None, launched=started, ended=ended),
    )  # fmt: skip
    evidence = with_expectations(told, system)
    seen = first_problem(evidence)
    again = record.model_copy(update=dict(conclude_logs(evidence, system, record.problem or seen, record.provenance)))
    return again, again.problem if record.problem is None else seen


def _topology(record: RunRecord) -> Topology:
    return Topology(
        nodes=record.nodes, gpus_per_node=record.gpus // record.nodes,
        cpu_ranks_per_node=max(record.ranks // record.nodes, 1),
    )  # fmt: skip


def differences(record: RunRecord, again: RunRecord, seen: Problem | None, folder: Path) -> Iterator[str]:
    """Yield how a record differs from what its logs say.

    Args:
        record: as it was kept.
        again: as the logs have it.
        seen: the problem that the logs show.
        folder: that of the run, with the task of its launch.
    """
    name = f"run {record.key}"
    if record.problem is None and seen is not None:
        yield f"{name}: the record says that it can be judged, the log says {seen.kind}: {harmless(seen.message)}"
        return
    for field in (each for each in _COMPUTED if each in record.model_fields_set):
        yield from compared(f"{name}: {field}", getattr(record, field), getattr(again, field))
    yield from _of_launch(name, record, folder)


def numbers_of(again: RunRecord) -> int:
    """How many numbers of a record were computed from its logs."""
    return count_numbers(again.model_dump(include=set(_COMPUTED)))


def count_numbers(value: Any) -> int:
    """How many numbers there are in plain data."""
    if isinstance(value, Mapping):
        return sum(count_numbers(each) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(each) for each in value)
    return int(isinstance(value, int | float) and not isinstance(value, bool))


def _of_launch(name: str, record: RunRecord, folder: Path) -> Iterator[str]:
    task: LaunchedTask | None = None
    if (folder / layout.COMMAND).exists():
        task = CommandTask.read(folder / layout.COMMAND)
    elif (folder / layout.TASK).exists():
        task = Task.read(folder / layout.TASK)
    if task is None or record.replayed is not None:
        return
    shape = {"nodes": task.nodes, "ranks": task.nodes * task.ranks_per_node, "run_token": task.token}
    for field, value in shape.items():
        if getattr(record, field) != value:
            yield f"{name}: {field}: the record says {getattr(record, field)!r}, the task of its launch {value!r}"


def compared(where: str, kept: Any, found: Any) -> Iterator[str]:
    """Yield how two values differ, part by part."""
    if isinstance(kept, list | tuple) and isinstance(found, list | tuple):
        if len(kept) != len(found):
            yield f"{where}: the record has {len(kept)} of them, the log {len(found)}"
        for number, (one, other) in enumerate(zip(kept, found, strict=False), 1):
            yield from compared(f"{where}[{number}]", one, other)
        return
    parts, others = _parts(kept), _parts(found)
    if parts is None or others is None:
        if not same(kept, found):
            yield _told(where, kept, found)
        return
    # The version that wrote the record may not have had all fields.
    names = sorted(kept.model_fields_set - _WORDS) if isinstance(kept, BaseModel) else [*parts.keys() | others.keys()]
    for name in names:
        if name in parts and name in others:
            yield from compared(f"{where}.{name}", parts[name], others[name])
        else:
            yield _told(f"{where}.{name}", parts.get(name, "nothing"), others.get(name, "nothing"))


def _parts(value: Any) -> Mapping[str, Any] | None:
    """The named parts of a value; None where it has none."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value if isinstance(value, Mapping) else None


def same(kept: Any, found: Any) -> bool:
    """Whether two plain values are the same, but for the last digits of a float and for secrets that were taken out."""
    if isinstance(kept, bool) or isinstance(found, bool) or kept is None or found is None:
        return kept is found
    if isinstance(kept, int | float) and isinstance(found, int | float):
        return math.isclose(kept, found, rel_tol=_TOLERANCE, abs_tol=0.0) or (math.isnan(kept) and math.isnan(found))
    if isinstance(kept, str) and isinstance(found, str):
        found = harmless(found)
        if REDACTED in kept:
            return re.fullmatch(".*".join(map(re.escape, kept.split(REDACTED))), found, re.DOTALL) is not None
    return bool(kept == found)


def _told(where: str, kept: Any, found: Any) -> str:
    return f"{where}: the record says {harmless(str(kept))[:200]}, the log {harmless(str(found))[:200]}"
