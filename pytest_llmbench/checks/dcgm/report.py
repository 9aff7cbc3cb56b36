"""Reader of the JSON that `dcgmi diag -j` prints, of DCGM 2 to 4, and of nvvs beneath it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# Names that differ between versions, in the words of the newest.
_NAMES = {"gpu_memory": "memory", "eud_test": "eud", "cpu_eud_test": "cpu_eud"}
_STATUSES = {"pass": "PASS", "skip": "SKIP", "not run": "SKIP", "warn": "WARN", "fail": "FAIL"}
_ERROR = re.compile(r"^[ \t]{0,80}(Error: .+)$", re.MULTILINE | re.IGNORECASE)
_LONGEST = 300


class UnreadableReport(Exception):  # noqa: N818 - it is a finding about an output, no error of ours
    """An incomplete or unknown output; the message gives the reason."""


class Status(IntEnum):
    """Results of a test, the worst last. A test that did not run was skipped."""

    PASS = 0
    SKIP = 1
    WARN = 2
    FAIL = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """An error that a test recorded, whatever its status."""

    text: str  # in DCGM's words
    error_id: int | None = None  # numbers of DCGM's own, from version 3 on
    category: int | None = None
    severity: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DcgmResult:
    """The result of a test on some entities, such as `GPU 3`, or on the whole node; a PASS may have recorded errors."""

    status: Status
    entities: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosticOutcome:
    """One test of a diagnostic."""

    category: str  # such as `Deployment` or `Hardware`
    name: str  # as this version calls it
    results: tuple[DcgmResult, ...]  # one at least

    @property
    def key(self) -> str:
        """Its name, normalised over versions of DCGM: `memory` for `GPU Memory`."""
        return key_of(self.name)

    @property
    def skipped(self) -> bool:
        """True if it was skipped, at least in part."""
        return any(result.status is Status.SKIP for result in self.results)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One run of the diagnostic on one node; None for what the output lacks."""

    version: str | None = None  # DCGM's
    driver: str | None = None  # the driver's
    gpus: int | None = None  # number of GPUs in the diagnostic
    tests: tuple[DiagnosticOutcome, ...] = ()  # in order
    runtime_error: str | None = None  # the reason for an end without results, in DCGM's words
    unreadable: str | None = None  # the fault of an incomplete or unknown output; `tests` is empty then

    @property
    def results(self) -> tuple[DcgmResult, ...]:
        return tuple(result for test in self.tests for result in test.results)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Tests with results of some GPUs only, and GPUs without any result, in words."""
        # Up to version 3 a deployment test has one result for all, or names the first that it failed on.
        tests = [test for test in self.tests if test.category.casefold() != "deployment" or test.key == "software"]
        gpus = [{gpu for result in test.results for gpu in result.entities if gpu.startswith("GPU ")} for test in tests]
        known = set().union(*gpus)
        gaps = []
        for test, named in zip(tests, gpus, strict=True):
            if named and named != known:
                absent = sorted(known - named, key=lambda entity: int(entity.rsplit(maxsplit=1)[-1]))
                gaps.append(f"{test.name} has no result of {', '.join(absent)}")
        if known and self.gpus is not None and len(known) < self.gpus:
            gaps.append(f"results of {len(known)} GPUs of {self.gpus}")
        return tuple(gaps)


def key_of(name: str) -> str:
    """The name of a test, normalised over versions of DCGM."""
    key = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
    return _NAMES.get(key, key)


def read_dcgm(text: str) -> Diagnosis:
    """Read an output; one that is empty, cut or of several nodes gives the reason."""
    documents = find_documents(text)
    if len(documents) > 1:
        return Diagnosis(unreadable=f"it has results of {len(documents)} nodes")
    if documents:
        try:
            return read_document(documents[0])
        except (UnreadableReport, RecursionError) as error:
            return Diagnosis(unreadable=str(error))
    if error_line := error_in(text):
        return Diagnosis(runtime_error=error_line)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = f"no results; its last line is {lines[-1][:_LONGEST]!r}" if lines else "it printed nothing"
    return Diagnosis(unreadable=reason)


def error_in(text: str) -> str | None:
    """The first line in which dcgmi itself reports an error."""
    error = _ERROR.search(text)
    return error[1].strip()[:_LONGEST] if error else None


def _read_status(word: object) -> Status:
    status = _STATUSES.get(word.casefold()) if isinstance(word, str) else None
    if status is None:
        raise UnreadableReport(f"{word!r} is not a status of DCGM")
    return Status[status]


_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_BEGINNING = re.compile(r"^([ \t]*)\{", re.MULTILINE)
_IDS = re.compile(r"\d{1,6}(?:\s*,\s*\d{1,6})*", re.ASCII)


class _Twice(dict[str, Any]):
    """A JSON object with a duplicate key."""


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else _Twice(pairs)


def find_documents(text: str) -> list[Mapping[str, Any]]:
    """Every whole document about a diagnostic in an output that may have other lines around them."""
    documents: list[Mapping[str, Any]] = []
    decoder, end, outermost = json.JSONDecoder(object_pairs_hook=_make_object), 0, len(text)
    for match in _BEGINNING.finditer(text):
        # One with a larger indent than a cut document is a part of it.
        if match.end() <= end or len(match[1]) > outermost:
            continue
        try:
            document, end = decoder.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            outermost = min(outermost, len(match[1]))
            continue
        if any(name in document for name in _ROOTS):
            documents.append(document)
    return documents


def read_document(document: Mapping[str, Any]) -> Diagnosis:
    """Read one document. Raises UnreadableReport if it is of an unknown version."""
    document = _mapping(document, "the output")
    root = _mapping(next(document[name] for name in _ROOTS if name in document), "the diagnostic")
    error = root.get("runtime_error")
    version = _find_text("version", document, root)
    if error is not None:
        return Diagnosis(version=version, runtime_error=str(error))
    tests = tuple(
        _read_test(category.get("category"), test)
        for category in _mappings(root, "test_categories")
        for test in _mappings(category, "tests")
    )
    if not tests:
        raise UnreadableReport("there are no tests in it")
    driver = _find_text("Driver Version Detected", document, root)
    return Diagnosis(version=version, driver=driver, gpus=_count_gpus(document, tests), tests=tests)


def _read_test(category: object, test: Mapping[str, Any]) -> DiagnosticOutcome:
    name = test.get("name")
    if not isinstance(name, str) or not isinstance(category, str):
        raise UnreadableReport(f"a test has no name or no category: {name!r} of {category!r}")
    results = [_read_result(_mapping(item, f"a result of {name}")) for item in _items(test, "results")]
    if "test_summary" in test:
        summary = _read_result(_mapping(test["test_summary"], f"the summary of {name}"))
        # From version 4.5 on the summary repeats the errors of the results.
        texts = {recorded.text for result in results for recorded in result.recorded}
        own = tuple(recorded for recorded in summary.recorded if recorded.text not in texts)
        if own or summary.status > max((result.status for result in results), default=Status.SKIP):
            results.append(DcgmResult(status=summary.status, recorded=own))
    return DiagnosticOutcome(category=category, name=name, results=tuple(results) or (DcgmResult(status=Status.SKIP),))


def _read_result(result: Mapping[str, Any]) -> DcgmResult:
    given = result.get("warnings", result.get("warning"))
    entries = [] if given in (None, "") else given if isinstance(given, list) else [given]
    return DcgmResult(
        status=_read_status(result.get("status")),
        entities=_read_entities(result),
        recorded=tuple(_read_recorded(entry) for entry in entries if entry is not None),
    )


def _read_recorded(entry: object) -> Recorded:
    if isinstance(entry, str):
        return Recorded(text=entry)
    warning = _mapping(entry, "a warning")
    # Deployment tests of version 3 write the one key for the other.
    text = warning.get("warning", warning.get("warnings"))
    if not isinstance(text, str):
        raise UnreadableReport(f"a warning without text: {str(warning)[:100]}")
    error_id, category, severity = (_number(warning, f"error_{name}") for name in ("id", "category", "severity"))
    return Recorded(text=text, error_id=error_id, category=category, severity=severity)


def _read_entities(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The entities of a result, which versions name in three ways."""
    if "entity_id" in result:
        number = _number(result, "entity_id")
        if number is None:
            raise UnreadableReport("a result of an entity without a number")
        return (f"{result.get('entity_group', 'entity')} {number}",)
    ids = result.get("gpu_ids", result.get("gpu_id"))
    if ids is None or (isinstance(ids, int) and ids < 0):  # of the whole node
        return ()
    if not _IDS.fullmatch(str(ids)):
        raise UnreadableReport(f"{ids!r} are not GPUs")
    return tuple(f"GPU {int(number)}" for number in str(ids).split(","))


def _count_gpus(document: Mapping[str, Any], tests: Sequence[DiagnosticOutcome]) -> int | None:
    for group in _mappings(document, "entity_groups"):
        if group.get("entity_group") == "GPU":
            return len(_items(group, "entities"))
    named = {gpu for test in tests for result in test.results for gpu in result.entities if gpu.startswith("GPU ")}
    return len(_items(document, "GPU Device IDs")) or len(named) or None


def _find_text(name: str, document: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    places = (place for place in (document.get("metadata"), document, root) if isinstance(place, Mapping))
    return next((str(place[name]) for place in places if isinstance(place.get(name), str)), None)


def _number(mapping: Mapping[str, Any], name: str) -> int | None:
    value = mapping.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UnreadableReport(f"{name} {value!r} is not a number")
    return value


def _items(mapping: Mapping[str, Any], name: str) -> list[Any]:
    """The items of a list that may be missing, or have holes: up to version 3 a test that did not run is `null`."""
    value = mapping.get(name, [])
    if not isinstance(value, list):
        raise UnreadableReport(f"{name} is not a list")
    return [item for item in value if item is not None]


def _mappings(mapping: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [_mapping(item, f"an item of {name}") for item in _items(mapping, name)]


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableReport(f"{what} is not an object")
    if isinstance(value, _Twice):
        raise UnreadableReport(f"{what} has a key twice")
    return value
