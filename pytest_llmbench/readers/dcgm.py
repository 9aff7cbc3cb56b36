"""What `dcgmi diag` printed: JSON where there is any, else its table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_llmbench.readers.dcgm_items import Diagnosis, Unreadable
from pytest_llmbench.readers.dcgm_json import find_documents, read_document
from pytest_llmbench.readers.dcgm_text import read_table, split_tables

_ERROR = re.compile(r"^\s*(Error: .+)$", re.MULTILINE | re.IGNORECASE)
_LONGEST = 300


def read_dcgm(text: str) -> tuple[Diagnosis, ...]:
    """Read an output: one diagnosis per node whose output it has, one at least.

    An output that is empty, cut, or has no results gives one that says so; nothing raises.
    """
    told = [_document(each) for each in find_documents(text)] or [_table(each) for each in split_tables(text)]
    return tuple(told) or (_without_results(text),)


def _document(document: Mapping[str, Any]) -> Diagnosis:
    try:
        return read_document(document)
    except (Unreadable, RecursionError) as error:
        return Diagnosis(unreadable=str(error))


def _table(lines: list[str]) -> Diagnosis:
    try:
        return read_table(lines)
    except Unreadable as error:
        return Diagnosis(unreadable=str(error))


def _without_results(text: str) -> Diagnosis:
    if error := _ERROR.search(text):
        return Diagnosis(runtime_error=error[1].strip()[:_LONGEST])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = f"no results; its last line is {lines[-1][:_LONGEST]!r}" if lines else "it printed nothing"
    return Diagnosis(unreadable=why)
