"""The campaigns of faults and of killed sessions: their declarations, and what they count."""

import json
import subprocess
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.endurance import Campaign, Round, cells, made_in_vain, passed
from benchmarks.faults.declared import FAULTS
from benchmarks.faults.judging import Expected, Seen, differences, judge, look
from benchmarks.faults.left import remains
from benchmarks.faults.scenes import SCENES
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.records import Problem, RunOutcome, RunRecord, write_model
from pytest_llmbench.session.ending import run_identity
from pytest_llmbench.session.journal.journal import EventKind, Journal, now
from tests.unit.judging.conftest import small

EXPECTED = Expected(
    exit=1, kinds=("hang", "rank_died"), words=("rank 1 on ",), told=("SIMULATED",), unsaid=("rank 0",),
    never=("\x1b",),
)  # fmt: skip
SEEN = Seen(
    exit=1, verdict="ERROR", kind="hang", message="rank 1 on n2", output="SIMULATED FAULT", metrics=0, left=()
)  # fmt: skip
CASE = (
    '<testsuite><testcase name="test_reference[fault_x-learns]"><error message="rank 1 on n2 hangs"/>'
    '<properties><property name="verdict" value="ERROR"/></properties></testcase></testsuite>'
)


def test_each_declaration_can_fail() -> None:
    """Each of at least 40 faults expects something that a careless harness misses."""
    assert len(FAULTS) >= 40
    assert max(Counter(fault.key for fault in FAULTS).values()) == 1
    shared = [fault for fault in FAULTS if fault.scene not in {"alone", "daemons"}]
    # A run is selected, and its job is found, by its name.
    assert not [a.name for a in shared for b in shared if a is not b and b.key in a.key]
    assert {fault.scene for fault in FAULTS} == {*SCENES}
    healthy = Seen(exit=0, verdict="PASS", kind=None, message="", output="", metrics=4, left=())
    ended = Seen(exit=1, verdict="ERROR", kind="harness", message="", output="", metrics=0, left=())
    for fault in FAULTS:
        assert fault.done
        # The fault that a program in front of Slurm's commands plays must have struck, or a PASS would prove nothing.
        assert fault.proof or fault.expected.verdict != "PASS" or fault.strike, fault.name
        assert fault.recipe or fault.options or fault.prepare or fault.strike, f"{fault.name} breaks nothing"
        assert differences(fault.expected, ended), fault.name
        assert (fault.expected.verdict == "PASS") or differences(fault.expected, healthy), fault.name


@pytest.mark.parametrize("wrong", [
    {"exit": 0}, {"verdict": "PASS"}, {"verdict": None}, {"kind": None}, {"kind": "harness"}, {"message": "died"},
    {"output": ""}, {"metrics": 1}, {"left": ("job 7",)}, {"output": "SIMULATED \x1b[2J"}, {"double": 1},
    {"message": "rank 1 on n2, rank 0 on n1"},
], ids=str)  # fmt: skip
def test_a_line_is_sound_only_if_every_expectation_is_met(wrong: dict[str, Any]) -> None:
    assert judge("x", EXPECTED, SEEN).outcome == "sound"
    line = judge("x", EXPECTED, replace(SEEN, **wrong))
    assert line.outcome == "unsound"
    assert line.why


def test_a_run_that_must_pass_has_no_problem() -> None:
    seen = replace(SEEN, exit=0, verdict="PASS", kind=None, metrics=4)
    assert judge("x", Expected(exit=0, verdict="PASS"), seen).outcome == "sound"
    assert judge("x", Expected(exit=0, verdict="PASS"), replace(seen, kind="hang")).outcome == "unsound"
    assert judge("x", Expected(exit=0, verdict="PASS"), replace(seen, metrics=0)).outcome == "unsound"


@pytest.mark.parametrize("nothing", ["it could not strike", replace(SEEN, left=None), replace(SEEN, exit=None)])
def test_nothing_compared_is_an_error(nothing: Seen | str) -> None:
    assert judge("x", EXPECTED, nothing).outcome == "error"


def test_what_is_seen_is_what_is_on_disk(tmp_path: Path) -> None:
    """The report has the verdict of the run's own test, the record its problem; a killed session has neither."""
    run = tmp_path / "runs" / "fault_x"
    run.mkdir(parents=True)
    (run / "record.json").write_text(json.dumps({"problem": {"kind": "hang", "message": "."}, "metrics": {"a": 1}}))
    (tmp_path / "junit.xml").write_text(CASE)
    seen = look(tmp_path, "fault_x", 1, "output")
    assert (seen.verdict, seen.kind, seen.metrics, seen.left) == ("ERROR", "hang", 1, None)
    assert "rank 1 on n2 hangs" in seen.message
    assert look(tmp_path, "fault", 1, "").verdict is None
    (tmp_path / "junit.xml").write_text("")
    assert look(tmp_path, "fault_x", -9, "").verdict is None
    assert look(None, "fault_x", 4, "").kind is None


def test_a_folder_whose_name_another_begins_with_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.faults.left.Queue.run", lambda *_: "")
    (other := tmp_path / "held-longer").mkdir()
    with subprocess.Popen(["sleep", "60"], env={"TMPDIR": str(other)}) as process:
        try:
            # The kernel tells a parent of the new program a moment before its command line is there.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            assert remains(tmp_path / "held") == []
            assert remains(other) == [f"process {process.pid} (sleep 60)"]
        finally:
            process.kill()


TEST_CASE = '<testcase name="{}"><properties><property name="verdict" value="{}"/></properties></testcase>'


def test_a_verdict_counts_once(tmp_path: Path) -> None:
    """A test that is in the report twice has no verdict, and neither has one that did not pass."""
    cases = [TEST_CASE.format(*case) for case in [("a", "PASS"), ("b", "PASS"), ("b", "PASS"), ("c", "ERROR")]]
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
