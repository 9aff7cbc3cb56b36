"""The verdicts of a session as its tests reported them, in one file: also of tests that no run and no check has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.schema import Strict

Property = str | int | float | bool | None


class ClauseTold(Strict):
    """One clause of `--llmbench-require FILE`."""

    name: str
    """Number or name of the clause in the contract."""
    tests: tuple[str, ...]
    """Node ids, names of tests, or patterns of either."""
    verdict: Verdict
    """Worst verdict of the clause's tests, or INCOMPLETE."""
    reason: str = ""
    """Reason for INCOMPLETE; else empty."""


class SessionVerdicts(Strict):
    """All verdicts of a session."""

    schema_version: Literal[1] = 1
    session: str
    """Id of the session."""
    facts: Mapping[str, str] = {}
    """Properties of the whole session, as in the JUnit report."""
    tests: tuple[Mapping[str, Property], ...] = ()
    """Properties of each test, and of each compared group of nodes; the name is under `test`."""
    clauses: tuple[ClauseTold, ...] = ()
    """Verdict of each required clause."""
    notes: tuple[str, ...] = ()
    """Lines about verdicts that are missing, such as the runs of which no speed was judged."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read them back.

        Raises:
            ConfigError: the file is not there, cut, or of another schema version.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path}: no verdicts of a session of schema version 1: {error}") from error
