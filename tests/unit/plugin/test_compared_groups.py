"""Groups of nodes and their records: which are compared, and why others are not."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups

# A real run on one H200.
REAL = RunRecord.read(Path(__file__).parents[2] / "data" / "h200" / "runs" / "opt125m" / "record.json")


def record(group: int, slower: Callable[[int], float] = lambda _step: 1.0, **changes: Any) -> RunRecord:
    """A group's run of 100 steps, each slower by a factor."""
    rng = random.Random(group)
    steps = [
        REAL.steps[0].model_copy(update={"step": i, "seconds": slower(i) * (1.15 + 0.001 * rng.gauss(0, 1))})
        for i in range(1, 101)
    ]
    return REAL.model_copy(update={"key": f"g{group}", "hosts": (f"n{group}",), "steps": tuple(steps), **changes})


def compared(*records: RunRecord) -> ComparedGroups:
    runs = [RunSpec(key=each.key, recipe=each.recipe, group=i) for i, each in enumerate(records, start=1)]
    return compare_groups(runs, {each.key: each for each in records}, None)


def verdicts(groups: ComparedGroups) -> dict[str, str]:
    return {str(row["hosts"]): str(row["verdict"]) for row in groups.rows}


def test_a_group_that_still_became_faster_is_not_decided() -> None:
    found = compared(record(1), record(2), record(3, lambda step: 3.0 - 0.02 * step))
    assert verdicts(found) == {"n1": "PASS", "n2": "PASS", "n3": "INCONCLUSIVE"}
    assert "n3 (g3): too few of its steps are steady" in found.rows[2]["reason"]


@pytest.mark.parametrize("changes", [{"nodes": 2}, {"gpus": 8}, {"device": "NVIDIA H100"}])
def test_runs_of_other_shapes_are_not_compared(changes: dict[str, Any]) -> None:
    found = compared(record(1), record(2), record(3, **changes))
    assert not found.rows
    assert [*found.lines] == ["GROUPS NOT COMPARED: n1 (g1), n2 (g2), n3 (g3): they differ in nodes, GPUs or batch"]


def test_processors_are_not_compared_unless_asked() -> None:
    smoke = REAL.recipe.model_copy(update={"scale": "smoke"})
    for changes in ({"gpus": 0, "device": "cpu"}, {"recipe": smoke}):
        (line,) = compared(record(1, **changes), record(2, **changes)).lines
        assert "unless you set llmbench_group_tolerance" in line


def test_a_session_without_groups_has_nothing_to_tell() -> None:
    found = compare_groups([RunSpec(key="g1", recipe=REAL.recipe)], {"g1": record(1)}, None)
    assert not found.rows
    assert not [*found.lines]
