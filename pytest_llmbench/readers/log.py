"""Reads a framework's log files with its dialect into a step series.

Damaged step lines are counted and shown instead of being read as numbers, and a second run in the same files is
reported. Memory holds the steps alone, for logs of any length.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import Extensions, named
from pytest_llmbench.core.record.claims import Claim, Setting
from pytest_llmbench.core.record.series import Progress, Step, StepSeries
from pytest_llmbench.core.wire.labels import NEEDLE, Label, labels_in
from pytest_llmbench.readers import items
from pytest_llmbench.readers.lines import Line, last_lines, read_lines
from pytest_llmbench.readers.numbers import unix_time
from pytest_llmbench.readers.patterns import FAILURES, cut_off, may_be_survived, remoteness
from pytest_llmbench.readers.shared_prefix import SharedPrefix, find_shared_prefix

_Thing = TypeVar("_Thing")

_MOST_REPORTED = 20
# Lines at the beginning and at the end of a file by which the prefix of its lines is found.
_SAMPLE = 200
# `[2026-11-21 02:46:00.79] `, `[2023-05-01 10:00:00,123] `, `2026-11-21 02:58:47 | `
_STAMP = re.compile(r"(?<!\d)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\b", re.ASCII)
# All ranks print the same settings, so one run has few different ones.
_MOST_CLAIMS, _MOST_SETTINGS = 1000, 5000
_OF_STEP = Step.model_fields.keys() & {attribute.name for attribute in fields(items.StepLine)} - {"interval"}
# One for each node.
_MOST_LABELS = 100_000


def read_log(
    paths: Iterable[Path],
    parse: items.Parse,
    claims: items.Claims = lambda _: (),
    needles: items.Needles = items.EVERY_LINE,
) -> StepSeries:
    """Read log files, in the order given, as one log. Lines without any of the `needles` may be skipped.

    The reason of a failure matters only in a log without proof of completion, so only such a log gets a second pass
    that searches for the words of failures.
    """
    collected, files = _Collected(), tuple(paths)
    wanted = tuple((*words, NEEDLE) if words else () for words in (needles.all, needles.always))
    for line in collected.lines(files, lambda: wanted[collected.begun]):
        collected.take_cut_off(line)
        for claim in _first_found(collected.texts(line), claims):
            collected.claim(claim, line)
            if not collected.begun:  # after the first step, lines with settings may be skipped
                collected.stamp(line)
        try:
            for item in _first_found(collected.texts(line), parse):
                collected.take(item, line)
        except items.Unreadable as error:
            collected.refuse(line, str(error))
    if needles.always and "completed" not in collected.facts:
        for line in collected.lines(files, lambda: FAILURES):
            collected.take_cut_off(line)
            with suppress(items.Unreadable):
                found = _first_found(collected.texts(line), parse)
                for failed in (item for item in found if isinstance(item, items.Failed)):
                    collected.take(failed, line)
    return collected.series()


def _first_found(texts: Iterable[str], read: Callable[[str], Iterable[_Thing]]) -> Iterator[_Thing]:
    """Yield what is found in the first of the texts in which anything is.

    Raises Unreadable if one text is a damaged step line and the others have nothing.
    """
    damage = None
    for text in texts:
        found = False
        try:
            for thing in read(text):
                found = True
                yield thing
        except items.Unreadable as error:
            if found:
                raise
            damage = damage or error
        if found:
            return
    if damage:
        raise damage


def last_step(path: Path, parse: items.Parse) -> Progress | None:
    """Read the last step from the end of a log that is still being written, at constant cost."""
    last = None
    for line in last_lines(path):  # in order, as a dialect may remember the lines before
        with suppress(items.Unreadable):
            line_items = list(parse(line.text)) if line.whole else []
            last = next((item for item in reversed(line_items) if isinstance(item, items.StepLine)), last)
    return Progress(step=last.step, seconds=last.seconds) if last is not None else None


def last_words(path: Path) -> str:
    """Return the last line of a log so far with its prefix, labels left out; empty without a line."""
    lines = ((line.source, labels_in(line.text)[1].strip()) for line in reversed(last_lines(path)))
    return next((f"{source} {text}".strip() for source, text in lines if text), "")


@dataclass(slots=True)
class _Collected:
    """The items read so far. Steps are kept by source, as several ranks that share a file may log them."""

    # Values of the series by its field; of each the first one counts.
    facts: dict[str, Any] = field(default_factory=dict)
    _steps: dict[str, dict[int, items.StepLine]] = field(default_factory=dict)
    _totals: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _sized: set[tuple[str, str]] = field(default_factory=set)
    _sizes: dict[str, int] = field(default_factory=dict)  # number of ranks, by file
    _cut_off: tuple[tuple[int, int], str] | None = None
    _failure: tuple[tuple[int, int, int], str] | None = None
    _file: int = 0
    _last_step: dict[int, int] = field(default_factory=dict)  # place of the last line of a step, by file
    _begin: str | None = None
    _pausing: bool = False
    _paused: set[int] = field(default_factory=set)
    _bad_ends: dict[str, None] = field(default_factory=dict)
    _unreadable: list[str] = field(default_factory=list)
    _unread_after: Counter[int] = field(default_factory=Counter)
    _claims: dict[items.Said, Claim] = field(default_factory=dict)
    _settings: dict[tuple[str, str], Setting] = field(default_factory=dict)
    _sections: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _stamped: dict[bool, tuple[float, float]] = field(default_factory=dict)
    _skipped: dict[int, int] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _nodes: dict[items.Node, None] = field(default_factory=dict)
    _prefix: SharedPrefix = field(default_factory=SharedPrefix)
    _labels: dict[str, Label] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether there was a step."""
        return bool(self._steps)

    def lines(self, files: Sequence[Path], needles: Callable[[], Sequence[bytes]]) -> Iterator[Line]:
        """Yield the lines of the files from `read_lines`, without their labels."""
        for self._file, path in enumerate(files):
            first = list(islice(read_lines(path), _SAMPLE))
            last = last_lines(path)[-_SAMPLE:] if len(first) == _SAMPLE else first
            sample = (*first, *last)
            self._prefix = find_shared_prefix([line.text for line in sample])
            if not self._prefix.ends and len({bool(line.source) for line in sample}) > 1:
                # A launcher's prefix is left on some lines, as on those that pdsh prints of a text with an indent.
                self._prefix = find_shared_prefix([f"{line.source} {line.text}".lstrip() for line in sample])
            yield from map(self._label, read_lines(path, needles))

    def texts(self, line: Line) -> Iterator[str]:
        """Yield the text of a line, and then what is left of it without the prefix of all lines of its file."""
        yield line.text
        yield from self._prefix.rests(line.text)

    def _label(self, line: Line) -> Line:
        """Keep the labels of a line, each once; returns the line without them."""
        if "#llmbench" not in line.text:
            return line
        labels, rest = labels_in(line.text)
        self._labels |= {str(label): label for label in labels[: _MOST_LABELS - len(self._labels)]}
        return replace(line, text=rest)

    def take(self, item: items.Item, line: Line) -> None:
        """Record an item. Numbers of a line that was cut off are dropped, as they may have lost digits."""
        match item:
            case items.StepLine():
                self._take_step(item, line)
            case items.Failed(words=words):
                # The first among those nearest to the cause; by place, as a second pass reads out of order.
                failure = ((remoteness(words), self._file, line.place), words.strip())
                if not self._is_survived(failure[0]):
                    self._failure = min(self._failure or failure, failure, key=lambda one: one[0])
            case items.Completed(words=words) if words.strip():
                self.facts.setdefault("completed", words.strip())
            case items.Pause():
                self._pausing = True
            case items.BadEnd(words=words):
                self._bad_ends[words] = None
            case items.Contradiction(words=words):
                self.facts.setdefault("contradictions", (f"{line.file}:{line.number}: {words}",))
            case _ if line.whole:
                self._take_fact(item, line)
        self.stamp(line, failed=isinstance(item, items.Failed))

    def _take_fact(self, item: items.Item, line: Line) -> None:
        match item:
            case items.WorldSize(ranks=ranks):
                source = (line.file, line.source)
                if self._steps and source in self._sized:
                    self._restart(line, "the number of ranks is printed again after the first step")
                self._sized.add(source)
                if ranks != (known := self._sizes.setdefault(line.file, ranks)):
                    self._restart(line, f"{ranks} ranks after {known}")
                self.facts.setdefault("world_size", ranks)
            case items.Begun(words=words):
                if words != (self._begin or words):  # two runs, even if different ranks logged them
                    self._restart(line, f"{words!r} after {self._begin!r}")
                self._begin = words
            case items.Node() if len(self._nodes) < _MOST_LABELS:
                self._nodes[item] = None
            case items.LogInterval(steps=steps) if steps:
                self.facts.setdefault("log_interval", steps)
            case items.Total(name=name, value=value) if name.isprintable():
                self._totals.setdefault(name, value)
            case items.Count(name=name):
                self._counts.setdefault(line.source, Counter())[name] += 1

    def _is_survived(self, at: tuple[int, int, int]) -> bool:
        """Whether words that a run may survive stand before a step in the same file."""
        return may_be_survived(at[0]) and at[2] < self._last_step.get(at[1], 0)

    def take_cut_off(self, line: Line) -> None:
        """Keep Slurm's first message about the end of the run at its time limit."""
        if words := cut_off(line.text):
            candidate = ((self._file, line.place), words)
            self._cut_off = min(self._cut_off or candidate, candidate)

    def stamp(self, line: Line, *, failed: bool = False) -> None:
        """Keep the first and the last time of lines with items, apart from those that explain a failure."""
        if line.whole and (match := _STAMP.search(line.text)) and (at := unix_time(match[1])) is not None:
            first, last = self._stamped.get(failed, (at, at))
            self._stamped[failed] = (min(first, at), max(last, at))

    def claim(self, item: items.Said | items.Printed | items.Skipped, line: Line) -> None:
        """Keep a setting with the place of its first print, or a count of skipped steps, of a complete line."""
        where = f"{line.file}:{line.number}"
        match item:
            case items.Printed(value=value):
                name = item.name if item.indent is None else self._in_section(item, item.indent, line.source)
                if line.whole and value and len(self._settings) < _MOST_SETTINGS:
                    setting = Setting(name=name, value=value, where=where, compared=item.compared)
                    self._settings.setdefault((name, value), setting)
            case items.Said(name=claimed) if line.whole and len(self._claims) < _MOST_CLAIMS:
                self._claims.setdefault(item, Claim(name=claimed, value=item.value, where=where, stage=item.stage))
            case items.Skipped(step=step) if line.whole:
                self._skipped[step] = max(item.so_far, self._skipped.get(step, 0))

    def _in_section(self, item: items.Printed, indent: int, source: str) -> str:
        """The name of a setting of YAML behind those of its sections."""
        sections = self._sections.setdefault(source, [])
        while sections and sections[-1][0] >= indent and item.name != "-":
            sections.pop()
        names = ".".join([name for _, name in sections])
        if item.name == "-":
            return names or item.name
        if not item.value:
            sections.append((indent, item.name))
        return f"{names}.{item.name}" if names else item.name

    def refuse(self, line: Line, reason: str) -> None:
        """Count an unreadable line, and keep the first ones for the report."""
        self._unread_after[max((next(reversed(steps)) for steps in self._steps.values()), default=0)] += 1
        if len(self._unreadable) < _MOST_REPORTED:
            self._unreadable.append(f"{line.file}:{line.number}: {reason}")

    def series(self) -> StepSeries:
        """Return the series of the log; failures of a run that completed are left out."""
        # Ranks that share a log print the same steps; the longest list is complete, and the slowest rank is the run.
        furthest = max(
            self._steps.values(),
            key=lambda own: (len(own), sum(step.seconds or 0.0 for step in own.values())),
            default={},
        )
        counts: Counter[str] = Counter()
        for counted in self._counts.values():
            counts |= counted
        ended = self.facts.get("completed")
        times = [span for failed, span in self._stamped.items() if not (failed and ended)]
        return StepSeries(
            steps=tuple(_with_intervals(list(furthest.values()), self._paused)),
            unreadable=tuple(self._unreadable),
            unread=self._unread_after.total(),
            unread_after=self._unread_after,
            first_apart=any(step.first_apart for step in furthest.values()),
            totals={**counts, **self._totals},
            failure=self._failure[1] if self._failure and not ended else None,
            cut_off=self._cut_off[1] if self._cut_off and not ended else None,
            bad_ends=tuple(self._bad_ends)[:_MOST_REPORTED],
            claims=tuple(self._claims.values()),
            settings=tuple(self._settings.values()),
            stamped=(min(first for first, _ in times), max(last for _, last in times)) if times else None,
            skipped=tuple(sorted(self._skipped.items())),
            labels=tuple(self._labels.values()),
            nodes=tuple((node.host, node.ranks) for node in self._nodes),
            **self.facts,
        )

    def _take_step(self, step: items.StepLine, line: Line) -> None:
        if not line.whole:
            self.refuse(line, f"step {step.step} is cut off")
        elif not all(map(str.isprintable, step.reported)):
            self.refuse(line, f"step {step.step} has a control character in the name of a number")
        elif "restarted" not in self.facts:
            self._add_step(step, line)

    def _add_step(self, step: items.StepLine, line: Line) -> None:
        self._last_step[self._file] = line.place
        if self._failure and self._is_survived(self._failure[0]):
            self._failure = None
        steps = self._steps.setdefault(line.source, {})
        last = next(reversed(steps), 0)
        before = self._files.setdefault(line.source, line.file)
        self._files[line.source] = line.file
        both_began = {before, line.file} <= {file for file, _ in self._sized}
        if step.step > last and before != line.file and both_began:  # otherwise the files are parts or copies of a log
            self._restart(line, f"step {step.step} in another file than step {last}")
        elif step.step > last or (step.step == last and step.revises):
            steps[step.step] = step
            if self._pausing:
                self._paused.add(step.step)
                self._pausing = False
        elif repr(steps.get(step.step)) != repr(step):  # otherwise a copy; repr, as NaN differs from itself
            after = f"after step {last}" if step.step < last else "again, with other numbers"
            self._restart(line, f"step {step.step} {after}")

    def _restart(self, line: Line, reason: str) -> None:
        self.facts.setdefault("restarted", f"{line.file}:{line.number}: {reason}: a second run in the same log")


def _with_intervals(lines: Sequence[items.StepLine], paused: AbstractSet[int]) -> Iterator[Step]:
    """Yield the steps with the number of steps in each line's mean.

    The first line of a log that starts in the middle is assumed to cover at most as many steps as the second; a single
    line is assumed to start at step 1.
    """
    apart = any(line.first_apart for line in lines)
    before = max(0, 2 * lines[0].step - lines[1].step) if len(lines) > 1 else 0
    for line in lines:
        values = {name: getattr(line, name) for name in _OF_STEP}
        yield Step(interval=line.interval or max(1, line.step - before), paused=line.step in paused, **values)
        if not (apart and line.step == 1):
            before = line.step


def log_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a folder that match any pattern, each once, in the order of their names."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReader:
    """Reader of the logs of one framework."""

    name: str  # under which it is registered
    # Returns a parser for one log, which is called with each line in order, without a launcher's prefix; it raises
    # `Unreadable` for a damaged step line.
    dialect: Callable[[], items.Parse]
    claims: items.Claims = lambda _: ()  # returns the settings of the training that one line prints
    needles: items.Needles = items.EVERY_LINE  # words of lines with items or claims; others may be skipped


def _accept(name: str, thing: object) -> LogReader:
    if not isinstance(thing, LogReader):
        raise ConfigError("it is not a LogReader")
    reader: LogReader = named(LogReader)(name, thing)
    return reader


READERS: Extensions[LogReader] = Extensions("reader", "readers", _accept)
