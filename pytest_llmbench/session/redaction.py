"""Redaction of foreign text before it goes into records, and from there to reports and the terminal."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.records import Record, RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import REDACTED, Mark, mapped, redacted
from pytest_llmbench.workloads.node.secret_filter import is_secret, printable, read_secrets, secret_values

# What of a record others wrote: frameworks, ranks, launchers, Slurm; nodes.
_FOREIGN = {
    "run": {
        "problem",
        "unreadable",
        "rank_info",
        "cut_off",
        "device",
        "versions",
        "provenance",
        "superseded",
        "failed_launches",
    },
    "check": {"report"},
}
_AnyRecord = TypeVar("_AnyRecord", bound=Record)


class Redactor:
    """Removes secrets and terminal control sequences from the records of one session.

    The secrets are those that this process can see, and those that the driver of a run saw on its node.
    """

    def __init__(self, system: System) -> None:
        known = secret_values({**os.environ, **system.env}, ())
        for environment in system.environments.values():
            known |= secret_values({**environment.env, **read_secrets(environment.secrets)}, environment.secrets)
        self._known = known

    def text(self, text: str) -> str:
        """A text as it may be shown."""
        return redacted(harmless(text), self._known)

    def words(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Words of a command line as they may be kept: without logins and values of options for secrets."""
        kept: list[str] = []
        for text in texts:
            before, parts = kept[-1] if kept else "", text.split("=")
            names = [number for number, part in enumerate(parts[:-1], 1) if is_secret(part, ())]
            if names:
                kept.append("=".join([*parts[: names[0]], REDACTED]))
            elif before.startswith("-") and "=" not in before and is_secret(before, ()):
                kept.append(REDACTED)
            else:
                kept.append(printable(self.text(text)))
        return tuple(kept)

    def clean(self, record: _AnyRecord) -> _AnyRecord:
        """A record as it may be kept."""
        driver = read_report(Path(record.replayed or record.folder)) if isinstance(record, RunRecord) else None
        marks: Sequence[Mark] = driver.secrets if driver is not None else ()
        fields = record.model_dump(include=_FOREIGN[record.about])
        foreign = mapped(fields, lambda text: redacted(harmless(text), self._known, marks))
        return type(record).model_validate({**dict(record), **foreign})
