"""All private names of pytest that this package uses. `tests/unit/plugin/test_pytest_private.py` tries each."""

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.junitxml import LogXML, _NodeReporter, bin_xml_escape, xml_key
from _pytest.runner import runtestprotocol
from _pytest.timing import Instant

__all__ = ["Instant", "LogXML", "NodeReporter", "bin_xml_escape", "fixture_definitions", "runtestprotocol", "xml_key"]

NodeReporter = _NodeReporter


def fixture_definitions(metafunc: pytest.Metafunc, name: str) -> Sequence[pytest.FixtureDef[Any]]:
    """The definitions that a fixture's name stands for in a test; the last one is used."""
    return metafunc._arg2fixturedefs.get(name, ())  # noqa: SLF001
