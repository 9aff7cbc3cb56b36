"""The table that `dcgmi diag` prints without `-j`; those of several nodes may follow each other, without names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmbench.checks.dcgm.report_items import (
    DcgmResult,
    Diagnosis,
    DiagnosticOutcome,
    Recorded,
    Status,
    UnreadableReport,
    status_of,
)

_HEADER = re.compile(r"\|\s*Diagnostic\s*\|\s*Result\s*\|")
_UNDER_HEADER = re.compile(r"\+=+\+=+\+")
_LAST = re.compile(r"\+-+\+-+\+")
_SECTION = re.compile(r"[|+]-----\s+(\w+(?: \w+)*)\s+-+\+-+[|+]")
_ROW = re.compile(r"\|([^|]*)\|(.*)\|")
_WORD = r"(Pass|Fail|Skip|Warn|Not Run)"
# `Pass`, `Pass - All`, `Fail - GPU: 0`, `Fail - GPUs: 0, 3`, and from version 4 on `GPU0: Pass`.
_STATUS = re.compile(rf"{_WORD}(?: - (?:All|(\w+?)s?: (\d{{1,6}}(?:, \d{{1,6}})*)))?", re.ASCII)
_ENTITY_STATUS = re.compile(rf"([A-Za-z]+) ?(\d{{1,6}}): {_WORD}", re.ASCII)
_MESSAGE = re.compile(r"(Warning|Error|Info)(?:: ([A-Za-z]+) ?(\d{1,6}))?", re.ASCII)
_ABOUT_GPU = re.compile(r"GPU (\d{1,6})\b", re.ASCII)
# dcgmi cuts a message into pieces of this many characters, and pads the last.
_PIECE = 45


@dataclass
class _Message:
    """A warning, an error or information under a test, in pieces."""

    kind: str
    entity: str | None
    pieces: list[str]

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()


@dataclass
class _ReportRow:
    """A test and the lines beneath it."""

    category: str
    name: str
    results: list[DcgmResult] = field(default_factory=list)
    messages: list[_Message] = field(default_factory=list)

    def test(self) -> DiagnosticOutcome:
        """The test, each recorded error with the result that it is about."""
        entities = {entity: number for number, result in enumerate(self.results) for entity in result.entities}
        worst = max(range(len(self.results)), key=lambda number: self.results[number].status)
        told: list[list[Recorded]] = [[] for _ in self.results]
        for message in self.messages:
            if message.kind != "Info":
                about = message.entity
                if about is None and (match := _ABOUT_GPU.match(message.text)):
                    about = f"GPU {match[1]}"
                told[entities.get(about or "", worst)].append(Recorded(text=message.text))
        results = [
            DcgmResult(status=result.status, entities=result.entities, recorded=tuple(recorded))
            for result, recorded in zip(self.results, told, strict=True)
        ]
        return DiagnosticOutcome(category=self.category, name=self.name, results=tuple(_without_summary(results)))


def split_tables(text: str) -> list[list[str]]:
    """The lines of every table in an output, each from its header to its last line, or to where it is cut."""
    tables: list[list[str]] = []
    is_open = False
    for line in (each.strip() for each in text.splitlines()):
        if _HEADER.fullmatch(line):
            tables.append([])
            is_open = True
        is_open = is_open and line.startswith(("|", "+"))
        if is_open:
            tables[-1].append(line)
        is_open = is_open and not _LAST.fullmatch(line)
    return tables


def read_table(lines: Sequence[str]) -> Diagnosis:
    """Read one table.

    Raises:
        Unreadable: it is cut, or has a row that no version prints.
    """
    if not _LAST.fullmatch(lines[-1]):
        raise UnreadableReport("the table ends before its last line")
    rows: list[_ReportRow] = []
    metadata: dict[str, str] = {}
    category: str | None = None
    for line in lines[1:-1]:
        if section := _SECTION.fullmatch(line):
            category = section[1]
        elif cells := _ROW.fullmatch(line):
            if category == "Metadata":
                metadata[cells[1].strip()] = cells[2].strip()
            else:
                _take(rows, category or "", cells[1].strip(), cells[2])
        elif not _UNDER_HEADER.fullmatch(line):
            raise UnreadableReport(f"no row of a table: {line!r}")
    if not rows:
        raise UnreadableReport("there are no tests in it")
    gpus = [each for each in metadata.get("GPU Device IDs Detected", "").split(",") if each.strip()]
    return Diagnosis(
        version=metadata.get("DCGM Version"),
        driver=metadata.get("Driver Version Detected"),
        gpus=len(gpus) or None,
        tests=tuple(row.test() for row in rows),
    )


def _take(rows: list[_ReportRow], category: str, name: str, cell: str) -> None:
    """Take one row: a test, a further result of it, a message about it, or the next piece of that."""
    value = cell.strip()
    if message := _MESSAGE.fullmatch(name):
        entity = f"{message[2]} {message[3]}" if message[2] else None
        if not rows:
            raise UnreadableReport(f"a message about no test: {value!r}")
        rows[-1].messages.append(_Message(message[1], entity, [cell[1 : 1 + _PIECE]]))
        return
    result = _result(value)
    if name:
        if result is None:
            raise UnreadableReport(f"{name} says {value!r}, not a result")
        rows.append(_ReportRow(category, name, [result]))
    elif rows and result is not None:
        if {entity for each in rows[-1].results for entity in each.entities} & set(result.entities):
            raise UnreadableReport(f"{rows[-1].name} has two results of the same: {value!r}")
        rows[-1].results.append(result)
    elif rows and rows[-1].messages:
        rows[-1].messages[-1].pieces.append(cell[1 : 1 + _PIECE])
    else:
        raise UnreadableReport(f"{value!r} belongs to no test")


def _result(value: str) -> DcgmResult | None:
    if match := _STATUS.fullmatch(value):
        entities = tuple(f"{match[2]} {number}" for number in match[3].split(", ")) if match[3] else ()
        return DcgmResult(status=status_of(match[1]), entities=entities)
    if match := _ENTITY_STATUS.fullmatch(value):
        return DcgmResult(status=status_of(match[3]), entities=(f"{match[1]} {match[2]}",))
    return None


def _without_summary(results: list[DcgmResult]) -> list[DcgmResult]:
    """From version 4 on the first line sums up those beneath it: it counts where it says or records more than they."""
    first, *rest = results
    worst = max((result.status for result in rest), default=Status.SKIP)
    repeats = bool(rest) and not first.entities and not first.recorded and first.status <= worst
    return rest if repeats else results
