"""The table and the lines of a live view, drawn from pictures that are made here."""

import io
import re

import pytest

from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.live import StateLines, console_for, describe_task, duration, table_lines
from pytest_llmbench.reporting.screen import BlockScreen
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask
from tests.support.screens.terminal import Terminal

RUNNING = LiveTask(
    name="opt125m", state="running", step=12, steps=50, words_per_s=212_345.6, eta_s=41.6, started=900.0, gpus=8,
    bound=">= 1,000 words/s",
)  # fmt: skip
PENDING = LiveTask(name="opt350m", state="pending", detail="job 7 Priority", starts=1e9)
FAILED = LiveTask(name="bloom", state="judged", verdict=Verdict.FAIL, took_s=3600.0, gpus=2)


def picture(*tasks: LiveTask, at: float = 1000.0) -> LiveSnapshot:
    return LiveSnapshot(session="s", host="h", pid=1, began=900.0, at=at, count=3, tasks=tasks)


def drawn(snapshot: LiveSnapshot, width: int, height: int = 20) -> list[str]:
    return table_lines(snapshot, console_for(width, coloured=False), height)


def test_a_wide_table_says_all_of_a_run() -> None:
    """State, step, speed, bound, time left and hours stand in the row of a run."""
    lines = drawn(picture(PENDING, FAILED, RUNNING), 180)
    assert lines[0] == "3 runs: 1 running, 1 pending, 1 FAIL; 2.22 GPU-hours, 1:40"
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
    assert "2 running, 1,998 waiting" in lines[0]
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
    assert "\x1b[" in "".join(table_lines(picture(FAILED), console_for(80, coloured=True), 9))
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
