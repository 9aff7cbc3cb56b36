"""The tables of verdicts and of health, and of a live view, drawn from pictures that are made here."""

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.live import StateLines, describe_task, duration, table_lines, urgency
from pytest_llmbench.reporting.screen import BlockScreen
from pytest_llmbench.reporting.table import render, render_health
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask
from tests.support.screens.terminal import Terminal

PASSED = {
    "run": "opt125m", "nodes": 1, "statistic": "throughput", "value": 212345.6, "unit": "words/s",
    "threshold": ">= 200000 words/s", "verdict": "PASS", "run_record": "runs/opt125m/record.json",
}  # fmt: skip


def test_a_test_is_a_line_under_a_header() -> None:
    assert list(render([PASSED], 80)) == [
        ("", "run      nodes  statistic   measured         threshold           verdict"),
        ("PASS", "opt125m  1      throughput  212,346 words/s  >= 200,000 words/s  PASS"),
    ]


def test_nothing_measured_is_a_dash() -> None:
    _, (verdict, line) = render([{"run": "opt125m", "verdict": "SKIP", "threshold": ""}], 80)
    assert verdict == "SKIP"
    assert line.split() == ["opt125m", "—", "—", "—", "—", "SKIP"]


def test_a_measured_zero_is_a_number() -> None:
    _, (_, line) = render([PASSED | {"value": 0.0}], 80)
    assert "  0 words/s  " in line


@pytest.mark.parametrize(("verdict", "shown"), [("PASS", False), ("SKIP", False), ("FAIL", True), ("ERROR", True)])
def test_who_has_to_look_closer_is_told_where(verdict: str, *, shown: bool) -> None:
    """A failure and an error point to the run record; a pass and a skip need none."""
    lines = [line for _, line in render([PASSED | {"verdict": verdict}], 80)]
    assert ("    run record: runs/opt125m/record.json" in lines) is shown


@pytest.mark.parametrize("width", [80, 120])
def test_a_reason_is_wrapped_under_its_line(width: int) -> None:
    """A long reason, or one of several lines, is indented, and fills the width of the terminal without leaving it."""
    reason = "first\n\n" + "word " * 60
    _, _, *lines = render([PASSED | {"verdict": "FAIL", "reason": reason, "run_record": None}], width)
    assert {verdict for verdict, _ in lines} == {"FAIL"}
    assert all(line.startswith("    ") for _, line in lines)
    assert width - 5 < max(len(line) for _, line in lines) <= width
    assert " ".join(line.strip() for _, line in lines) == " ".join(reason.split())


def test_the_reference_is_named_where_the_terminal_is_wide_enough() -> None:
    rows = [PASSED | {"reference": "azure_200k"}, PASSED]
    _, (_, named), (_, own) = render(rows, 120)
    assert (named.split()[-2:], own.split()[-2:]) == (["PASS", "azure_200k"], ["PASS", "—"])
    assert list(render(rows, len(named))) == list(render(rows, 120))
    _, (_, named), _ = render(rows, len(named) - 1)
    assert named.split()[-1] == "PASS"


def test_the_nodes_of_each_run_are_told() -> None:
    on = [PASSED | {"run": f"group{at}", "hosts": hosts} for at, hosts in enumerate(("n1,n2", "n3,n4", "n1,n2"))]
    assert [line for _, line in render(on, 80)][-2:] == ["on n1, n2: group0, group2", "on n3, n4: group1"]
    *_, (_, last) = render([PASSED | {"hosts": "n1"}, PASSED | {"hosts": "n1", "run": "b"}], 80)
    assert last.startswith("b")
    (line,) = [line for _, line in render([PASSED | {"hosts": ",".join(f"n{i}" for i in range(128))}], 80)][2:]
    assert line == "on n0, n1, n2, n3, n4, n5, n6, n7 and 120 more: opt125m"


ROWS = st.fixed_dictionaries(
    {"verdict": st.sampled_from([*map(str, Verdict)])},
    optional={
        "run": st.text("abc", max_size=12), "nodes": st.integers(1, 4096), "statistic": st.text("abc", max_size=12),
        "threshold": st.text("abc", max_size=12), "reason": st.text("abc ", max_size=300),
    },
).flatmap(
    lambda row: st.one_of(
        st.just(row), st.floats(allow_nan=False).map(lambda value: {**row, "value": value, "unit": "s"})
    )
)  # fmt: skip


@given(st.lists(ROWS, max_size=5))
def test_columns_line_up_whatever_is_in_them(rows: list[dict[str, Any]]) -> None:
    (_, header), *lines = render(rows, 80)
    at = header.index("verdict")
    tests = [(verdict, line) for verdict, line in lines if not line.startswith("    ") or line[at:] == verdict]
    assert [verdict for verdict, _ in tests] == [row["verdict"] for row in rows]
    assert all(line[at:] == verdict for verdict, line in tests)


def row(check: str, host: str, verdict: str, **more: object) -> dict[str, object]:
    return {"check": check, "host": host, "verdict": verdict, "nodes": 1, **more}


def test_a_check_has_a_line_and_the_same_reason_is_told_once() -> None:
    rows = [row("limits", f"n{i}", "PASS") for i in range(1, 60)]
    rows += [row("limits", f"n{i}", "FAIL", reason=f"n{i} nofile: too low [CONFIGURE]") for i in (60, 61)]
    lines = [line for _, line in render_health(rows, 80)]
    assert lines[1] == "limits  FAIL     2 FAIL, 59 PASS"
    assert lines[2:] == [
        "bad nodes: n60 (limits), n61 (limits)",
        "FAIL limits on n60, n61: nofile: too low [CONFIGURE]",
    ]


def test_a_check_of_all_nodes_shows_what_it_measured() -> None:
    rows = [row("all_reduce", "", "PASS", nodes=8, measured="busbw_8GiB 235 GB/s")]
    assert [line for _, line in render_health(rows, 80)][1] == "all_reduce  PASS     8      busbw_8GiB 235 GB/s"


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_on_a_check_is_shown(verdict: Verdict) -> None:
    """A test of a user's own on a check may be INCONCLUSIVE."""
    lines = [line for _, line in render_health([row("limits", "n1", str(verdict), reason="why")], 80)]
    assert lines[1].split() == ["limits", str(verdict), "1"]
    assert (f"{verdict} limits on n1: why" in lines) is (verdict is not Verdict.PASS)


def test_what_is_true_of_many_checks_is_told_once() -> None:
    rows = [row(check, "n1", "SKIP", reason="no GPUs") for check in ("gpu_ecc", "gpu_xid")]
    assert [line for _, line in render_health(rows, 80)][3:] == ["SKIP gpu_ecc, gpu_xid on n1: no GPUs"]


def test_hints_are_shown_although_the_node_passes() -> None:
    rows = [row("tuning", "n1", "PASS", hints="n1: swap is on [MONITOR swap]")]
    assert ("", "hint tuning on n1: swap is on [MONITOR swap]") in list(render_health(rows, 80))


RUNNING = LiveTask(
    name="opt125m", state="running", step=12, steps=50, words_per_s=212_345.6, eta_s=41.6, started=900.0, gpus=8,
    bound=">= 1,000 words/s",
)  # fmt: skip
PENDING = LiveTask(name="opt350m", state="pending", detail="job 7 Priority", starts=1e9)
FAILED = LiveTask(name="bloom", state="judged", verdict=Verdict.FAIL, took_s=3600.0, gpus=2)


def test_a_judged_run_whose_verdict_is_lost_has_a_place() -> None:
    """Another version may have written its `live.json`."""
    assert urgency(LiveTask(name="a", state="judged")) > urgency(FAILED)


def picture(*tasks: LiveTask, at: float = 1000.0) -> LiveSnapshot:
    return LiveSnapshot(session="s", host="h", pid=1, began=900.0, at=at, count=3, tasks=tasks)


def drawn(snapshot: LiveSnapshot, width: int, height: int = 20) -> list[str]:
    return table_lines(snapshot, width, height, coloured=False)


def test_a_wide_table_says_all_of_a_run() -> None:
    """State, step, speed, bound, time left and hours stand in the row of a run."""
    lines = drawn(picture(PENDING, FAILED, RUNNING), 180)
    assert lines[0] == "3 runs: 1 running, 1 FAIL, 1 pending; 2.22 GPU-hours, 1:40"
    assert lines[2].split("  ")[0] == "opt125m"
    for part in ("12/50", "212,346", ">= 1,000 words/s", "42 s", "0.22"):
        assert part in lines[2]
    assert "bloom" in lines[3]
    assert "starts " in lines[4]
    assert "job 7 Priority" in lines[4]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 139, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 10])
def test_the_table_fits_into_any_terminal(width: int, height: int) -> None:
    """No line is wider than the terminal, nor are there more of them than rows."""
    many = [RUNNING.model_copy(update={"name": f"run-{number}" * 9}) for number in range(70)]
    lines = drawn(picture(*many, PENDING, FAILED), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", range(24, 201, 3))
def test_no_number_is_cut(width: int) -> None:
    """A narrow terminal cuts names and reasons, and leaves columns out: half of a number would be another number."""
    told = RUNNING.model_copy(update={"name": "a-run-with-a-name-of-forty-characters-1", "detail": "why " * 20})
    row = drawn(picture(told, PENDING, FAILED), width)[2]
    name, _, rest = row.partition("  ")
    assert name.rstrip("…") in told.name
    rest = rest.replace("why " * 20, "").partition("why")[0]
    assert "…" not in rest
    assert re.match(r" *(FAIL|running|pending) +12/50", rest)


def test_what_does_not_fit_is_counted_and_the_urgent_is_shown() -> None:
    """Of 2,000 runs, those under way are in the first rows, and all are in the counters."""
    waiting = [LiveTask(name=f"w{number}") for number in range(1998)]
    later = RUNNING.model_copy(update={"name": "later", "eta_s": 90.0})
    lines = drawn(picture(*waiting, later, FAILED, RUNNING), 100, 5)
    assert "2 running, 1 FAIL, 1,998 waiting" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == ["opt125m", "later"]
    assert lines[4:] == ["and 2 more"]
    lines = drawn(picture(*waiting, later, FAILED, RUNNING), 100, 6)
    assert [line.split()[0] for line in lines[4:]] == ["bloom", "1998"]
    assert re.fullmatch(r"1998 runs +waiting", lines[5].strip())


def test_nodes_and_bounds_are_in_eighty_columns() -> None:
    """Who sees a slow run wants its node and what it should reach, also when the run is over."""
    run = {"hosts": "n13", "name": "alpha-group13"}
    lines = drawn(picture(FAILED.model_copy(update=run | {"bound": RUNNING.bound}), RUNNING.model_copy(update=run)), 80)
    assert [("n13" in line, RUNNING.bound in line) for line in lines[2:]] == [(True, True)] * 2


def test_texts_of_others_are_harmless() -> None:
    """What a log or Slurm says neither colours nor moves anything on the terminal."""
    evil = PENDING.model_copy(update={"detail": "\x1b[2Jgone\x07 [red]\nnext", "name": "a\x1b[31mb"})
    for text in ("\n".join(drawn(picture(evil), 180)), describe_task(evil)):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "gone" in text
        assert "[red]" in text


def test_colours_are_left_out_where_nobody_wants_them() -> None:
    assert "\x1b[" in "".join(table_lines(picture(FAILED), 80, 9, coloured=True))
    assert "\x1b" not in "".join(drawn(picture(FAILED), 80))


def test_lines_tell_changes_and_signs_of_life() -> None:
    """Nothing in the first seconds; then a line for each change, and one a minute where nothing changes."""
    lines, waiting = StateLines(), LiveTask(name="a", steps=8)
    running = waiting.model_copy(update={"state": "running", "step": 3})
    assert list(lines.update(picture(running, at=901.0))) == []
    assert list(lines.update(picture(running, waiting.model_copy(update={"name": "b"}), at=911.0))) == ["a: step 3/8"]
    assert list(lines.update(picture(running, at=970.0))) == []
    assert list(lines.update(picture(running, at=971.0))) == ["1 run: 1 running; 0 node-hours, 1:11", "a: step 3/8"]
    done = waiting.model_copy(update={"state": "judged", "verdict": Verdict.PASS})
    assert list(lines.update(picture(done, at=972.0))) == ["a: PASS"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00"), (724, "12:04"), (3661, "1:01:01"), (180_000, "2 d 2 h")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("width", [12, 40, 80])
def test_the_block_and_what_others_write_leave_each_other_alone(width: int) -> None:
    """Dots, lines and long lines stand whole whenever a block was drawn and taken away in between."""
    terminal, file = Terminal(width), io.StringIO()
    screen = BlockScreen(file)
    written = ["first line\n", "test_a.py .", ".", "F" * 30, "\n", "verdicts\nPASS\n", "end"]
    for number, text in enumerate(written):
        screen.draw([f"row {number}", "second row"], width)
        screen.write(text)
    screen.draw(["last"], width)
    screen.clear()
    terminal.feed(file.getvalue())
    plain = Terminal(width)
    plain.feed("".join(written))
    assert terminal.lines == plain.lines
