"""`--metrics-file` and `--otlp`: the session's numbers for the programs that watch a site."""

from collections.abc import Iterator

import pytest

from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.reporting.base import FinishedSession


def exported(session: FinishedSession, config: pytest.Config) -> Iterator[Reported]:
    """Hand the numbers to the file and the endpoint that the options name.

    An endpoint that is down costs a line, and neither a verdict nor the exit code. A file that cannot be written is a
    report that could not be made.
    """
    path, url = options.value(config, "metrics-file"), options.value(config, "otlp")
    if path is not None:
        from pytest_llmbench.export.openmetrics import write_metrics  # noqa: PLC0415  # few sessions do

        try:
            write_metrics(session, options.from_here(config, path))
        except OSError as error:
            yield Reported(name="metrics file", failure=f"the metrics file could not be written: {error}")
    if url is not None:
        from pytest_llmbench.export.otlp import send  # noqa: PLC0415  # likewise

        try:
            told = f"{send(session, url)} numbers sent to {url}"
        except LLMBenchError as error:
            told = f"WARNING: {error}"
        yield Reported(name="otlp", lines=(told,))
