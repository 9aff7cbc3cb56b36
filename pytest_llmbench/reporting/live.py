"""The live view of a session: a table for terminals, and plain lines for logs."""

from __future__ import annotations

import heapq
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.text import harmless
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask, word_of

if TYPE_CHECKING:
    from rich.table import Table

# A shorter session prints its verdicts alone.
FIRST_S = 10.0
SIGN_S = 60.0
# Up to this number, runs under way are named, and runs alike have a row each.
_FEW = 4
# If more than a few runs are in one of these states, they become one row.
_FOLDED = {"waiting", "ended", "PASS", "SKIP"}
_DAY_S = 86400
# Between two columns.
_GAP = 2
# Rows and counters with a lower number come first: what is under way, bad ends, what waits, good ends.
_ORDER = {
    "running": 1, "checking": 1, "starting": 2, "ended": 3, "ERROR": 4, "FAIL": 4, "INCOMPLETE": 5,
    "INCONCLUSIVE": 5, "pending": 6, "waiting": 7, "XFAIL": 8, "PASS": 9, "SKIP": 9, "judged": 9,
}  # fmt: skip
_STYLES = {
    "PASS": "green", "FAIL": "red", "ERROR": "bold red", "SKIP": "yellow", "INCONCLUSIVE": "bold yellow",
    "XFAIL": "yellow", "INCOMPLETE": "bold red", "running": "bold",
}  # fmt: skip


class _LiveColumn(NamedTuple):
    title: str
    least: int = 0  # width of the terminal from which it is shown; the columns with the largest are dropped first
    right: bool = False
    most: int = 40  # its largest width
    shortest: int | None = None  # its smallest width where room is scarce; None if it must stay whole or go


_COLUMNS = (
    _LiveColumn("run", most=48, shortest=8),
    _LiveColumn("nodes", least=60, most=24, shortest=6),
    _LiveColumn("state"),
    _LiveColumn("step", right=True),
    _LiveColumn("words/s", least=50, right=True),
    _LiveColumn("bound", least=70),
    _LiveColumn("ETA", least=58, right=True),
    _LiveColumn("hours", least=100, right=True),
    _LiveColumn("why", least=100, most=60, shortest=24),
)


def _cells(task: LiveTask, snapshot: LiveSnapshot) -> dict[str, str]:
    """The text of a run in each column; unknown ones are empty."""
    left, hours = "", task.hours(snapshot.at)
    if task.state == "running" and task.eta_s is not None:
        left = duration(task.eta_s)
    elif task.starts is not None and task.state in {"pending", "waiting"}:
        left = f"starts {clock_time(max(task.starts, snapshot.at))}"
    return {
        "run": plain(task.name),
        "nodes": plain(task.hosts),
        "state": word_of(task),
        "step": f"{task.step}/{task.steps}" if task.step else "",
        "words/s": f"{task.words_per_s:,.0f}" if task.words_per_s is not None else "",
        "bound": task.bound,
        "ETA": left,
        "hours": for_people(hours, 2) if hours else "",
        "why": plain(task.detail),
    }


def urgency(task: LiveTask) -> tuple[int, float]:
    """Order of the rows."""
    return _ORDER[word_of(task)], task.eta_s or 0.0


def table_lines(
    snapshot: LiveSnapshot, width: int, height: int, notes: Sequence[str] = (), *, coloured: bool
) -> list[str]:
    """Draw a snapshot of a session as at most `height` lines of `width` columns.

    The notes, such as that the snapshot is old, are under the counters.
    """
    from rich.console import Console, Group  # noqa: PLC0415  # heavy, and needed on terminals only
    from rich.text import Text  # noqa: PLC0415

    head = [Text(counts(snapshot), style="bold", no_wrap=True, overflow="ellipsis")]
    head += [Text(plain(note), style="bold red") for note in notes]
    # One line a note is assumed; the end of the table is cut off if a note is longer.
    tasks, room = [*_folded(snapshot.tasks)], max(0, height - len(head) - 1)
    rows = heapq.nsmallest(room if len(tasks) <= room else room - 1, tasks, key=urgency)
    parts = [*head, _table(snapshot, rows, width)] if rows else head
    if rows and len(rows) < len(tasks):
        parts.append(Text(f"and {len(tasks) - len(rows)} more", style="dim"))
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, no_color=not coloured, highlight=False,
        markup=False, emoji=False, legacy_windows=False, color_system="standard" if coloured else None,
    )  # fmt: skip
    with console.capture() as drawn:
        console.print(Group(*parts))
    return drawn.get().splitlines()[:height]


def _folded(tasks: Sequence[LiveTask]) -> Iterator[LiveTask]:
    """The tasks; many that wait for the same, or that ended without a fault, become one."""
    alike: dict[tuple[str, ...], list[LiveTask]] = {}
    for task in tasks:
        word = word_of(task)
        reason = task.detail if word == "waiting" else ""
        shared = (task.about, word, reason) if word in _FOLDED and task.starts is None else (task.about, task.name)
        alike.setdefault(shared, []).append(task)
    for same in alike.values():
        first = same[0]
        fold = LiveTask(
            name=counted(len(same), first.about), about=first.about, state=first.state, verdict=first.verdict,
            detail=first.detail if first.state == "waiting" else "",
        )  # fmt: skip
        yield from [fold] if len(same) > _FEW else same


def _table(snapshot: LiveSnapshot, rows: Sequence[LiveTask], width: int) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [_cells(task, snapshot) for task in rows]
    widths = _widths(cells, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column, wide in widths.items():
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=side, no_wrap=True, overflow="ellipsis", width=wide)
    for texts in cells:
        shown = (texts[column.title] for column in widths)
        table.add_row(*(Text(text, style=_STYLES.get(text, ""), no_wrap=True, overflow="ellipsis") for text in shown))
    return table


def _widths(cells: Sequence[Mapping[str, str]], width: int) -> dict[_LiveColumn, int]:
    """The columns that fit, with their widths; columns of numbers are dropped whole, as a cut number misleads."""
    from rich.cells import cell_len  # noqa: PLC0415  # heavy, and needed on terminals only

    widths = {}
    for column in _COLUMNS:
        texts = [texts[column.title] for texts in cells]
        if column.least <= width and any(texts):
            widths[column] = min(column.most, max(map(cell_len, (column.title, *texts))))
    while True:
        missing = sum(widths.values()) + _GAP * (len(widths) - 1) - width
        for column in reversed([*widths]):
            if column.shortest is not None and missing > 0:
                given = min(missing, max(0, widths[column] - column.shortest))
                widths[column] -= given
                missing -= given
        if missing <= 0 or len(widths) == 1:
            return widths
        del widths[max(reversed([*widths]), key=lambda column: column.least)]


class StateLines:
    """The changes from one snapshot of a session to the next, in lines.

    Attributes:
        first_s: seconds of a session before its first line.
    """

    def __init__(self, first_s: float = FIRST_S) -> None:
        self.first_s = first_s
        self._words: dict[tuple[str, str], str] = {}
        self._last_at: float | None = None

    def update(self, snapshot: LiveSnapshot) -> Iterator[str]:
        """Yield a line for each change since the last snapshot; without changes, a sign of life a minute."""
        if snapshot.at - snapshot.began < self.first_s:
            return
        changed = False
        for task in snapshot.tasks:
            word = word_of(task)
            before = self._words.get((task.about, task.name), "waiting")
            if word != before:
                self._words[task.about, task.name] = word
                changed = True
                yield describe_task(task)
        if changed or self._last_at is None:
            self._last_at = snapshot.at
        elif snapshot.at - self._last_at >= SIGN_S:
            self._last_at = snapshot.at
            yield counts(snapshot)
            under_way = [task for task in snapshot.tasks if task.state == "running"]
            if len(under_way) <= _FEW:
                yield from (describe_task(task) for task in under_way)


def describe_task(task: LiveTask) -> str:
    """One run or check in one line."""
    name, word = plain(task.name), word_of(task)
    if task.state != "running":
        reason = f" ({plain(task.detail)})" if task.detail else ""
        starts = f", expected to start at {clock_time(task.starts)}" if task.starts is not None else ""
        return f"{name}: {word}{reason}{starts}"
    parts = [f"{name}: step {task.step}/{task.steps}"]
    if task.words_per_s is not None:
        parts.append(f"{task.words_per_s:,.0f} words/s")
    if task.bound:
        parts.append(f"asked for {task.bound}")
    if task.eta_s is not None:
        parts.append(f"{duration(task.eta_s)} to go")
    return ", ".join(parts)


def counts(snapshot: LiveSnapshot) -> str:
    """All runs and checks by state and verdict, hours and time."""
    numbers = snapshot.counters
    runs, checks = len(snapshot.runs), len(snapshot.tasks) - len(snapshot.runs)
    what = " and ".join(counted(number, word) for number, word in ((checks, "check"), (runs, "run")) if number)
    states = ", ".join(f"{numbers[word]:,} {word}" for word in sorted(numbers, key=_ORDER.__getitem__))
    spent = f"{for_people(snapshot.hours, 3)} {snapshot.unit}"
    return f"{what or 'no run'}: {states or 'none'}; {spent}, {duration(snapshot.at - snapshot.began)}"


def duration(seconds: float) -> str:
    """Seconds as `42 s`, `12:04` minutes, `3:12:04` hours or `2 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if whole < 3600:
        return f"{minutes}:{rest:02d}"
    if whole < _DAY_S:
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    return f"{whole // _DAY_S} d {whole % _DAY_S // 3600} h"


def clock_time(at: float) -> str:
    """A Unix time in this time zone: `14:05`, or `26 Nov 14:05` of another day."""
    here, now = time.localtime(at), time.localtime()
    same_day = (here.tm_year, here.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", here)


def plain(text: str) -> str:
    """A foreign text in one line, free of terminal codes."""
    return " ".join(harmless(text).split())
