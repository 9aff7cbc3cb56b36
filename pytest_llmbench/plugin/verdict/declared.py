"""The tests that a session declared: collected, selected, and waiting for a run or a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.plugin.bench import Bench, bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.verdict import facts, outcome

if TYPE_CHECKING:
    from pytest_llmbench.session.record_store import RecordStore


def declared_test(item: pytest.Item, lines: dict[int, int | None] | None = None) -> Declared | None:
    """The task that a test waits for; None for a test of another kind.

    Args:
        item: the test.
        lines: those of functions seen before, by identity: pytest looks for the file of each of thousands of cases.
    """
    run, check = key_of(item, "run", RunKey), key_of(item, "health", CheckKey)
    if run is not None:
        reference = item.callspec.params.get("reference")  # type: ignore[attr-defined]  # it has a run
        name = reference.name if isinstance(reference, Reference) else None
        return Declared(test=item.nodeid, run=str(run), repeats=run.repeats, reference=name, line=_line(item, lines))
    if check is not None:
        return Declared(test=item.nodeid, check=check.check, slot=check.slot, line=_line(item, lines))
    return None


def judge(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Give a test of ours its verdict, and leave other tests alone."""
    test = declared_test(item)
    if test is not None:
        outcome.judge(item, call, report, lambda: known_facts(test, bench_of(item.config)))


def _line(item: pytest.Item, lines: dict[int, int | None] | None) -> int | None:
    made = getattr(item, "obj", item)
    function = id(getattr(made, "__func__", made))
    if lines is not None and function in lines:
        return lines[function]
    line = item.location[1]
    from_one = None if line is None else line + 1
    if lines is not None:
        lines[function] = from_one
    return from_one


def declared_tests(items: Sequence[pytest.Item]) -> list[Declared]:
    """Every test of ours among these, in their order."""
    lines: dict[int, int | None] = {}
    return [test for item in items if (test := declared_test(item, lines)) is not None]


def known_facts(test: Declared, bench: Bench, store: RecordStore | None = None) -> Mapping[str, Any]:
    """Properties of a test that ended before it reported any: those of its run or check, as far as known.

    Args:
        test: the test.
        bench: the planned session.
        store: the records there are.
    """
    if test.check is not None:
        check = store.checks.get(test.check) if store is not None else None
        made = check or bench.unmade_check(test.check)
        return facts.place_of(test) | facts.facts_of_check(made, test.slot, made=check is not None)
    run = test.run or ""
    record = store.runs.get(run) if store is not None else None
    known = record or bench.unmade(run)
    of_run = facts.facts_of_run(known, test.repeats, made=record is not None)
    named = (reference for reference in known.recipe.references if reference.name == test.reference)
    applied = [facts.facts_of_reference(reference) for reference in named]
    return {**facts.place_of(test), **of_run, **(applied[0] if applied else {})}
