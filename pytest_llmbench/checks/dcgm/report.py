"""Reader of the output of `dcgmi diag`: JSON where there is any, else its table."""

import re
from collections.abc import Callable
from typing import Any

from pytest_llmbench.checks.dcgm.report_items import Diagnosis, UnreadableReport
from pytest_llmbench.checks.dcgm.report_json import find_documents, read_document
from pytest_llmbench.checks.dcgm.report_text import read_table, split_tables

_ERROR = re.compile(r"^[ \t]{0,80}(Error: .+)$", re.MULTILINE | re.IGNORECASE)
_LONGEST = 300


def read_dcgm(text: str) -> tuple[Diagnosis, ...]:
    """Read an output: one diagnosis per node whose output it has, one at least.

    An output that is empty, cut, or has no results gives one that says so; nothing raises.
    """
    documents = [_read(read_document, each) for each in find_documents(text)]
    tables = [_read(read_table, each) for each in split_tables(text)]
    return (*documents, *tables) or (_without_results(text),)


def error_in(text: str) -> str | None:
    """The first line with which dcgmi itself says that something went wrong; None where it says none."""
    error = _ERROR.search(text)
    return error[1].strip()[:_LONGEST] if error else None


def _read(reader: Callable[[Any], Diagnosis], printed: object) -> Diagnosis:
    try:
        return reader(printed)
    except (UnreadableReport, RecursionError) as error:
        return Diagnosis(unreadable=str(error))


def _without_results(text: str) -> Diagnosis:
    if error := error_in(text):
        return Diagnosis(runtime_error=error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = f"no results; its last line is {lines[-1][:_LONGEST]!r}" if lines else "it printed nothing"
    return Diagnosis(unreadable=why)
