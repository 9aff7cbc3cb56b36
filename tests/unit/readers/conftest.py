"""Reading texts as if they were logs, and the public samples, which are not part of the project."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.readers.items import EVERY_LINE, Needles, Parse
from pytest_llmbench.readers.log import read_log
from tests.support import samples

Read = Callable[..., StepSeries]


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    path = tmp_path_factory.mktemp("log") / "job.out"

    def read_content(parse: Parse, content: str | bytes, needles: Needles = EVERY_LINE) -> StepSeries:
        path.unlink(missing_ok=True)  # some file systems wait for the disk where a file is written over
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_log([path], parse, needles=needles)

    return read_content


@pytest.fixture(scope="session")
def sample() -> Callable[[str], Path]:
    """Return what finds a recorded log by its name, or skips the test."""
    return samples.sample
