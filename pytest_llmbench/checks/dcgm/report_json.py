"""The JSON of `dcgmi diag -j`, and of nvvs beneath it, of DCGM 2 to 4."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_llmbench.checks.dcgm.report_items import (
    DcgmResult,
    Diagnosis,
    DiagnosticOutcome,
    Recorded,
    Status,
    UnreadableReport,
    status_of,
)

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_BEGINNING = re.compile(r"^([ \t]*)\{", re.MULTILINE)
_IDS = re.compile(r"\d{1,6}(?:\s*,\s*\d{1,6})*", re.ASCII)


class _Twice(dict[str, Any]):
    """An object that has a key twice, of which a reader would see the last alone."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    return told if len(told) == len(pairs) else _Twice(pairs)


def find_documents(text: str) -> list[Mapping[str, Any]]:
    """Every whole document about a diagnostic in an output that may have other lines around them."""
    found: list[Mapping[str, Any]] = []
    decoder, end, outermost = json.JSONDecoder(object_pairs_hook=_object), 0, len(text)
    for match in _BEGINNING.finditer(text):
        # What is indented more than one that is cut is a part of that.
        if match.end() <= end or len(match[1]) > outermost:
            continue
        try:
            document, end = decoder.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            outermost = min(outermost, len(match[1]))
            continue
        if any(name in document for name in (*_ROOTS, "iterations")):
            found.append(document)
    return found


def read_document(document: Mapping[str, Any]) -> Diagnosis:
    """Read one document.

    Raises:
        Unreadable: something in it is not what any version says.
    """
    if "iterations" in _mapping(document, "the output"):
        return _iterations(document)
    root = _mapping(next((document[name] for name in _ROOTS if name in document), None), "the diagnostic")
    error = root.get("runtime_error")
    if error is not None:
        return Diagnosis(version=_said("version", document, root), runtime_error=str(error))
    tests = tuple(
        _test(category.get("category"), _mapping(test, "a test"))
        for category in (_mapping(each, "a category") for each in _items(root, "test_categories"))
        for test in _items(category, "tests")
    )
    if not tests:
        raise UnreadableReport("there are no tests in it")
    return Diagnosis(
        version=_said("version", document, root),
        driver=_said("Driver Version Detected", document, root),
        gpus=_gpus(document, tests),
        tests=tests,
    )


def _iterations(document: Mapping[str, Any]) -> Diagnosis:
    runs = [read_document(_mapping(each, "an iteration")) for each in _sequence(document["iterations"], "iterations")]
    if not runs:
        raise UnreadableReport("there are no iterations in it")
    return Diagnosis(
        version=runs[0].version,
        driver=runs[0].driver,
        gpus=runs[0].gpus,
        tests=tuple(test for run in runs for test in run.tests),
        overall=status_of(document.get("Overall Result")),
        runtime_error=next((run.runtime_error for run in runs if run.runtime_error is not None), None),
    )


def _test(category: object, test: Mapping[str, Any]) -> DiagnosticOutcome:
    name = test.get("name")
    if not isinstance(name, str) or not isinstance(category, str):
        raise UnreadableReport(f"a test has no name or no category: {name!r} of {category!r}")
    results = [_result(_mapping(each, f"a result of {name}")) for each in _items(test, "results")]
    whole = _result(_mapping(test["test_summary"], f"the summary of {name}")) if "test_summary" in test else None
    if whole is not None:
        # From version 4.5 on the summary repeats what the results have recorded.
        told = {recorded.text for result in results for recorded in result.recorded}
        own = tuple(recorded for recorded in whole.recorded if recorded.text not in told)
        if own or whole.status > max((result.status for result in results), default=Status.SKIP):
            results.append(DcgmResult(status=whole.status, recorded=own))
    return DiagnosticOutcome(category=category, name=name, results=tuple(results) or (DcgmResult(status=Status.SKIP),))


def _result(result: Mapping[str, Any]) -> DcgmResult:
    given = result.get("warnings", result.get("warning"))
    entries = [] if given in (None, "") else given if isinstance(given, list) else [given]
    return DcgmResult(
        status=status_of(result.get("status")),
        entities=_entities(result),
        recorded=tuple(_recorded(each) for each in entries if each is not None),
    )


def _recorded(entry: object) -> Recorded:
    if isinstance(entry, str):
        return Recorded(text=entry)
    told = _mapping(entry, "a warning")
    # Deployment tests of version 3 write the one key for the other.
    text = told.get("warning", told.get("warnings"))
    if not isinstance(text, str):
        raise UnreadableReport(f"a warning without text: {str(told)[:100]}")
    return Recorded(
        text=text,
        error_id=_number(told, "error_id"),
        category=_number(told, "error_category"),
        severity=_number(told, "error_severity"),
    )


def _entities(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The entities of a result, by whichever of the three ways its version names them."""
    if "entity_id" in result:
        number = _number(result, "entity_id")
        if number is None:
            raise UnreadableReport("a result of an entity without a number")
        return (f"{result.get('entity_group', 'entity')} {number}",)
    ids = result.get("gpu_ids", result.get("gpu_id"))
    if ids is None or (isinstance(ids, int) and ids < 0):  # of no GPU alone
        return ()
    if not _IDS.fullmatch(str(ids)):
        raise UnreadableReport(f"{ids!r} are not GPUs")
    return tuple(f"GPU {int(number)}" for number in str(ids).split(","))


def _gpus(document: Mapping[str, Any], tests: Sequence[DiagnosticOutcome]) -> int | None:
    groups = [_mapping(each, "an entity group") for each in _items(document, "entity_groups")]
    for group in groups:
        if group.get("entity_group") == "GPU":
            return len(_items(group, "entities"))
    named = {gpu for test in tests for result in test.results for gpu in result.entities if gpu.startswith("GPU ")}
    return len(_items(document, "GPU Device IDs")) or len(named) or None


def _said(name: str, document: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    for place in (document.get("metadata"), document, root):
        if isinstance(place, Mapping) and isinstance(place.get(name), str):
            return str(place[name])
    return None


def _number(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UnreadableReport(f"{name} {value!r} is not a number")
    return value


def _items(mapping: Mapping[str, Any], name: str) -> list[Any]:
    """The items of a list that may be missing, or have holes: what did not run is `null` up to version 3."""
    return [each for each in _sequence(mapping.get(name, []), name) if each is not None]


def _sequence(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise UnreadableReport(f"{what} is not a list")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableReport(f"{what} is not an object")
    if isinstance(value, _Twice):
        raise UnreadableReport(f"{what} has a key twice")
    return value
