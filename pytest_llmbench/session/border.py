"""The border that foreign text crosses on its way into records, and from there to reports and the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import Mark, harmless, mapped, redacted
from pytest_llmbench.workloads.node.disclosure import read_secrets, secret_values

# What of a run's record others wrote: frameworks, ranks, launchers, Slurm.
_FOREIGN = {"problem", "unreadable", "rank_info", "cut_off", "device", "versions", "provenance"}


class Border:
    """Takes secrets and what a terminal would obey out of the records of one session.

    The secrets are those that this process can see, and those that the driver of a run saw on its node.
    """

    def __init__(self, system: System) -> None:
        known = secret_values({**os.environ, **system.env}, ())
        for environment in system.environments.values():
            known |= secret_values({**environment.env, **read_secrets(environment.secrets)}, environment.secrets)
        self._known = known

    def run(self, record: RunRecord) -> RunRecord:
        """The record of a run as it may be kept."""
        report = read_report(Path(record.replayed or record.folder))
        marks = report.secrets if report is not None else ()
        foreign = mapped(record.model_dump(include=_FOREIGN), lambda text: self._said(text, marks))
        return RunRecord.model_validate({**dict(record), **foreign})

    def check(self, record: HealthRecord) -> HealthRecord:
        """The record of a check as it may be kept."""
        report = mapped(record.report.model_dump(), self._said)
        return HealthRecord.model_validate({**dict(record), "report": report})

    def _said(self, text: str, marks: Sequence[Mark] = ()) -> str:
        return redacted(harmless(text), self._known, marks)
