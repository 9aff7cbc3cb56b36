"""Texts of a live view: one run, all runs counted, and a number with its bound."""

import time

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.text import harmless
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask, Projected, word_of

# States in the order of the counters; verdicts follow.
_STATES = ("running", "starting", "checking", "pending", "waiting", "ended")
_DAY_S = 86400


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
    if task.projected is not None and task.projected.bound:
        number = f"{speed(task.projected)} {task.projected.unit} " if task.projected.value is not None else ""
        parts.append(f"{number}{task.projected.bound}: {task.projected.verdict} so far")
    if task.eta_s is not None:
        parts.append(f"{duration(task.eta_s)} to go")
    return ", ".join(parts)


def speed(projected: Projected) -> str:
    """A number with its interval, without its unit: `1,024 [998 to 1,050]`; without an interval, `1,024 ?`."""
    if projected.value is None:
        return ""
    if projected.low is None and projected.high is None:
        return f"{for_people(projected.value)} ?"
    low = for_people(projected.low, 3) if projected.low is not None else "…"
    high = for_people(projected.high, 3) if projected.high is not None else "…"
    return f"{for_people(projected.value)} [{low} to {high}]"


def counts(snapshot: LiveSnapshot) -> str:
    """All runs and checks by state and verdict, hours and time."""
    numbers = snapshot.counters
    order = [*(word for word in _STATES if word in numbers), *(word for word in numbers if word not in _STATES)]
    runs, checks = len(snapshot.runs), len(snapshot.tasks) - len(snapshot.runs)
    what = " and ".join(counted(number, word) for number, word in ((checks, "check"), (runs, "run")) if number)
    states = ", ".join(f"{numbers[word]:,} {word}" for word in order)
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
