"""The content of a DCGM diagnostic, of any version, from JSON or a table."""

import re
from dataclasses import dataclass
from enum import IntEnum

# What versions call differently, in the words of the newest.
_NAMES = {"gpu_memory": "memory", "eud_test": "eud", "cpu_eud_test": "cpu_eud"}
_STATUSES = {"pass": "PASS", "skip": "SKIP", "not run": "SKIP", "warn": "WARN", "fail": "FAIL"}


class UnreadableReport(Exception):  # noqa: N818 - it is a finding about an output, no error of ours
    """An output that is not a whole diagnostic; the message gives the reason."""


class Status(IntEnum):
    """Results of a test, the worst last. A test that did not run was skipped."""

    PASS = 0
    SKIP = 1
    WARN = 2
    FAIL = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """An error that a test recorded, whatever its status.

    Attributes:
        text: in DCGM's words.
        error_id, category, severity: numbers of DCGM's own, from version 3 on and only in JSON; None without.
    """

    text: str
    error_id: int | None = None
    category: int | None = None
    severity: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DcgmResult:
    """The result of a test on some entities.

    Attributes:
        entities: such as `GPU 3`; none for a result of the whole node.
        status: PASS says nothing about `recorded`.
        recorded: the errors that the test recorded about them.
    """

    status: Status
    entities: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosticOutcome:
    """One test of a diagnostic.

    Attributes:
        category: such as `Deployment` or `Hardware`.
        name: as this version calls it.
        results: one at least.
    """

    category: str
    name: str
    results: tuple[DcgmResult, ...]

    @property
    def key(self) -> str:
        """Its name as every version would have it, such as `memory` for `GPU Memory`."""
        return key_of(self.name)

    @property
    def skipped(self) -> bool:
        """Whether it did not run, or not on all that it should have."""
        return any(result.status is Status.SKIP for result in self.results)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One run of the diagnostic on one node.

    Attributes:
        version: DCGM's; None where it does not say.
        driver: the driver's; the same.
        gpus: GPUs that it found; None where it does not say.
        tests: in order; of several iterations, all of them.
        overall: the result over all iterations; None for a single one.
        runtime_error: the reason for an end without results, in its own words; else None.
        unreadable: the reason why this is not a whole diagnostic; else None. Then there are no tests.
    """

    version: str | None = None
    driver: str | None = None
    gpus: int | None = None
    tests: tuple[DiagnosticOutcome, ...] = ()
    overall: Status | None = None
    runtime_error: str | None = None
    unreadable: str | None = None

    @property
    def results(self) -> tuple[DcgmResult, ...]:
        """The results of all tests."""
        return tuple(result for test in self.tests for result in test.results)

    @property
    def healthy(self) -> bool:
        """Whether every test ran and passed on every entity and recorded nothing."""
        passed = all(result.status is Status.PASS and not result.recorded for result in self.results)
        said = self.unreadable is None and self.runtime_error is None and self.overall in {None, Status.PASS}
        return said and bool(self.results) and passed and not self.uncovered

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Tests without a result: GPUs of a test that has results of some, by name or, without one, by number."""
        # Up to version 3 a deployment test has one result for all, or names the first that it failed on.
        tests = [test for test in self.tests if test.category.casefold() != "deployment" or test.key == "software"]
        gpus = [{gpu for result in test.results for gpu in result.entities if gpu.startswith("GPU ")} for test in tests]
        known = set().union(*gpus)
        told = [
            f"{test.name} has no result of {', '.join(sorted(known - named, key=_numbered))}"
            for test, named in zip(tests, gpus, strict=True)
            if named and named != known
        ]
        if known and self.gpus is not None and len(known) < self.gpus:
            told.append(f"results of {len(known)} GPUs of {self.gpus}")
        return tuple(told)


def key_of(name: str) -> str:
    """A test's name as every version would have it."""
    key = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
    return _NAMES.get(key, key)


def status_of(word: object) -> Status:
    """Read a status.

    Raises:
        Unreadable: no version says so.
    """
    known = _STATUSES.get(word.casefold()) if isinstance(word, str) else None
    if known is None:
        raise UnreadableReport(f"{word!r} is not a status of DCGM")
    return Status[known]


def _numbered(entity: str) -> int:
    return int(entity.rsplit(maxsplit=1)[-1])
