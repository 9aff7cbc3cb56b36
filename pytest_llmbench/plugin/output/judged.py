"""Runs all of whose tests have their verdict: their records get it, and leave the memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.plugin.output.provenance import judgements
from pytest_llmbench.session.record_store import RecordStore


class JudgedRuns:
    """Waits for the last verdict on each run."""

    def __init__(self, tests: Iterable[Declared] = ()) -> None:
        """Wait for the verdicts of tests."""
        self._waiting: dict[str, set[str]] = {}
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for test in tests:
            if test.run is not None:
                self._waiting.setdefault(test.run, set()).add(test.test)

    def take(self, row: Mapping[str, Any], store: RecordStore) -> None:
        """Take the properties of a verdict."""
        series = str(row.get("run"))
        if series not in self._waiting:
            return
        self._rows.setdefault(series, []).append(row)
        self._waiting[series].discard(row["test"])
        if not self._waiting[series]:
            del self._waiting[series]
            store.add_judgements(judgements(self._rows.pop(series)))
            store.let_go(series)
