"""All private names of pytest that this package uses. `tests/unit/plugin/test_pytest_private.py` tries each."""

from _pytest.junitxml import LogXML, _NodeReporter, bin_xml_escape, xml_key
from _pytest.runner import runtestprotocol
from _pytest.timing import Instant

__all__ = ["Instant", "LogXML", "NodeReporter", "bin_xml_escape", "runtestprotocol", "xml_key"]

NodeReporter = _NodeReporter
