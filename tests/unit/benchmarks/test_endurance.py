"""The campaign on killed sessions: what it counts."""

from argparse import Namespace
from pathlib import Path

from benchmarks.endurance import Campaign, Round, passed
from pytest_llmbench.session.journal.journal import EventKind, Journal, now

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


def test_a_round_is_sound_if_nothing_is_missing_double_or_left() -> None:
    sound = {"tests": 12, "verdicts": 12, "double": 0, "left": 0, "attempts": 0, "resumed": 0}
    for wrong in ({}, {"verdicts": 11}, {"double": 1}, {"left": 1}):
        assert Round(killed_s=1.0, finished=3, took_s=9.0, **{**sound, **wrong}).is_sound == (not wrong)
