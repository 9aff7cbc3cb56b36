"""The campaign on killed sessions: what it counts."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.endurance import Campaign, Round, cells, made_in_vain, passed
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.records import Problem, RunOutcome, RunRecord, write_model
from pytest_llmbench.session.ending import run_identity
from pytest_llmbench.session.journal.journal import EventKind, Journal, now
from tests.unit.judging.conftest import small

CASE = '<testcase name="{}"><properties><property name="verdict" value="{}"/></properties></testcase>'


def test_a_verdict_counts_once(tmp_path: Path) -> None:
    """A test that is in the report twice has no verdict, and neither has one that did not pass."""
    cases = [CASE.format(*case) for case in [("a", "PASS"), ("b", "PASS"), ("b", "PASS"), ("c", "ERROR")]]
    (tmp_path / "junit.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>")
    assert passed(tmp_path / "junit.xml") == 1


def test_a_run_that_had_its_record_is_double(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, Namespace(cluster="local", nodes=None, kill="pytest"))
    journal = Journal(tmp_path / "session" / "journal")
    events: list[tuple[EventKind, str]] = [
        ("submitting", "a"), ("submitting", "b"), ("finished", "a"), ("submitting", "b"), ("submitting", "a"),
    ]  # fmt: skip
    for kind, name in events:
        journal.note(now(kind, name=name))
    journal.close()
    assert campaign.double(tmp_path / "session", []) == 1
    assert campaign.left(tmp_path / "session") == 0


def test_the_matrix_of_ends_is_split_into_parts() -> None:
    """Each cell is in one part, at a moment within its tenth, and the same for a seed."""
    parts = [cells(1, f"{number}/4") for number in (1, 2, 3, 4)]
    every = [str(cell) for part in parts for cell in part]
    assert len(every) == len(set(every)) == 6 * 10 * 2 * 2
    assert parts[0] == cells(1, "1/4") != cells(2, "1/4")
    assert {str(cell) for cell in cells(1, only=["node", "-held-", "-60s"])} == {
        f"node-{n}-held-60s" for n in range(10)
    }
    assert all(cell.moment <= cell.after_s(10.0) <= cell.moment + 1 for cell in cells(1))


@pytest.mark.parametrize(("problem", "double"), [(None, 1), ("session_ended", 0)])
def test_a_good_run_that_was_made_again_was_made_in_vain(tmp_path: Path, problem: Any, double: int) -> None:
    settings = Settings(
        system=System(name="here", cluster="slurm"), cluster="slurm", allocation="run", run_dir=tmp_path
    )
    spec, session = RunSpec(key="run01", recipe=small()), Session(id="s", folder=tmp_path)
    outcome = RunOutcome(problem=problem and Problem(kind=problem, message="-"))
    write_model(
        tmp_path / "superseded" / "run01.1" / "earlier.json",
        RunRecord.of(run_identity(spec, settings, session), outcome),
    )
    assert made_in_vain(tmp_path, killed=False) == made_in_vain(tmp_path, killed=True) == double


def test_a_round_is_sound_if_nothing_is_missing_double_or_left() -> None:
    sound: dict[str, Any] = {"tests": 12, "verdicts": 12, "double": 0, "left": 0, "attempts": 0, "resumed": 0}
    for wrong in ({}, {"verdicts": 11}, {"double": 1}, {"left": 1}):
        assert Round(killed_s=1.0, finished=3, took_s=9.0, **{**sound, **wrong}).is_sound == (not wrong)
