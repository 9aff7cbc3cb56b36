"""The campaign of faults: its declarations, and how a line is judged."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.declared import FAULTS
from benchmarks.faults.judging import Expected, Line, Seen, differences, judge, look
from benchmarks.faults.page import row
from benchmarks.faults.scenes import SCENES

EXPECTED = Expected(exit=1, kinds=("hang", "rank_died"), words=("rank 1 on ",), told=("SIMULATED",), never=("\x1b",))
SEEN = Seen(
    exit=1, verdict="ERROR", kind="hang", message="rank 1 on n2", output="SIMULATED FAULT", metrics=0, left=()
)  # fmt: skip
CASE = (
    '<testsuite><testcase name="test_reference[fault_x-learns]"><error message="rank 1 on n2 hangs"/>'
    '<properties><property name="verdict" value="ERROR"/></properties></testcase></testsuite>'
)


def test_each_declaration_can_fail() -> None:
    """At least 40 faults, each with a name and a scene, and with an expectation that a harness without care misses."""
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
        assert fault.recipe or fault.options or fault.prepare or fault.strike, f"{fault.name} breaks nothing"
        assert differences(fault.expected, ended), fault.name
        assert (fault.expected.verdict == "PASS") or differences(fault.expected, healthy), fault.name


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit": 0}, {"verdict": "PASS"}, {"verdict": None}, {"kind": None}, {"kind": "harness"}, {"message": "died"},
        {"output": ""}, {"metrics": 1}, {"left": ("job 7",)}, {"output": "SIMULATED \x1b[2J"},
    ],
    ids=str,
)  # fmt: skip
def test_a_line_is_sound_only_if_every_expectation_is_met(wrong: dict[str, Any]) -> None:
    """One that is not makes it unsound."""
    assert judge("x", EXPECTED, SEEN).outcome == "sound"
    line = judge("x", EXPECTED, replace(SEEN, **wrong))
    assert line.outcome == "unsound"
    assert line.why


def test_a_run_that_must_pass_has_no_problem() -> None:
    """Without a kind, none is expected."""
    seen = replace(SEEN, exit=0, verdict="PASS", kind=None, metrics=4)
    assert judge("x", Expected(exit=0, verdict="PASS"), seen).outcome == "sound"
    assert judge("x", Expected(exit=0, verdict="PASS"), replace(seen, kind="hang")).outcome == "unsound"


@pytest.mark.parametrize("nothing", ["it could not strike", replace(SEEN, left=None), replace(SEEN, exit=None)])
def test_nothing_compared_is_an_error(nothing: Seen | str) -> None:
    """It is never sound, and never counted as if the harness were wrong."""
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


def test_a_row_counts_repetitions() -> None:
    """Sound ones of all, and what was seen of the others."""
    fault = FAULTS[0]
    lines = [judge(fault.name, EXPECTED, SEEN), judge(fault.name, EXPECTED, replace(SEEN, exit=0))]
    lines = [Line.read(line.to_json()) for line in lines]
    assert row(fault, lines).endswith("| 1 of 2 |")
    assert "1 × ERROR `hang`; exit 0 (exit 0, not 1)" in row(fault, lines)
    assert row(fault, []).endswith("| not run | 0 of 0 |")
