"""`--metrics-file`: the session's numbers for the programs that watch a site."""

from collections.abc import Iterator

import pytest

from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.reporting.export import write_metrics


def exported(session: FinishedSession, config: pytest.Config) -> Iterator[Reported]:
    """Write the numbers to the file that the option names. A file that cannot be written is a failed report."""
    path = options.value(config, "metrics-file")
    if path is not None:
        try:
            write_metrics(session, options.from_here(config, path))
        except OSError as error:
            yield Reported(name="metrics file", failure=f"the metrics file could not be written: {error}")
