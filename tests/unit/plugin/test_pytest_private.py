"""The private names of pytest do what this package needs of them: a version of pytest that changes one fails here."""

import io
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.plugin.pytest_private import (
    LogXML,
    add_to_summary,
    bin_xml_escape,
    find_setup,
    get_file,
    has_ini_key,
    make_writer,
    runtestprotocol,
    set_file,
    width_of,
    xml_key,
)


def report_of(when: str, outcome: str = "passed") -> pytest.TestReport:
    place = ("a.py", 1, "test_it")
    return pytest.TestReport("a.py::test_it", place, {}, outcome, None, when)  # type: ignore[arg-type]


def test_the_writer_of_xml(tmp_path: Path) -> None:
    """A case is kept in order, closed at the teardown, and counted; the file is written at the end."""
    writer = LogXML(str(tmp_path / "junit.xml"), "", "suite", "no", "total", "xunit1", True)
    writer.pytest_sessionstart()
    for when in ("setup", "call", "teardown"):
        writer.pytest_runtest_logreport(report_of(when))
    assert [case.to_xml().get("name") for case in writer.node_reporters_ordered] == ["test_it"]
    writer.add_stats("skipped")
    writer.add_global_property("name", "value")
    writer.pytest_sessionfinish()
    (suite,) = ET.parse(writer.logfile).getroot()
    assert (suite.get("tests"), suite.get("skipped")) == ("2", "1")
    assert (writer.family, isinstance(xml_key, pytest.StashKey)) == ("xunit1", True)


def test_the_ini_file_is_found_by_paths_of_tests(tmp_path: Path) -> None:
    (tmp_path / "b/tests").mkdir(parents=True)
    (tmp_path / "b/pytest.ini").write_text("[pytest]\n")
    assert find_setup([f"{tmp_path}/b/tests"], tmp_path) == (tmp_path / "b", tmp_path / "b/pytest.ini")
    assert find_setup([], tmp_path) == (tmp_path, None)


def test_a_writer_of_ours(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("-p", "no:llmbench", "-o", "junit_suite_name=named", "--junit-prefix=before")
    writer = make_writer(config, pytester.path / "junit.xml")
    writer.pytest_sessionstart()
    for wanted in (False, True):
        writer.wanted = wanted
        for when in ("setup", "call", "teardown"):
            writer.pytest_runtest_logreport(report_of(when))
        writer.pytest_sessionfinish()
        assert Path(writer.logfile).exists() is wanted
    (suite,) = ET.parse(writer.logfile).getroot()
    assert (suite.get("name"), suite.get("tests")) == ("named", "1")
    assert [case.get("classname") for case in suite] == ["before.a"]


def test_a_key_of_the_ini_file(pytester: pytest.Pytester) -> None:
    """One that is there is told from a default."""
    pytester.makeini("[pytest]\njunit_family = xunit1\n")
    config = pytester.parseconfig("-p", "no:llmbench")
    assert has_ini_key(config, "junit_family")
    assert not has_ini_key(config, "junit_logging")


def test_the_terminal(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("-p", "no:llmbench")
    reporter: pytest.TerminalReporter = config.pluginmanager.get_plugin("terminalreporter")  # type: ignore[assignment]
    before, other = get_file(reporter), io.StringIO()
    set_file(reporter, other)
    reporter.write_line("a line")
    assert get_file(reporter) is other
    assert "a line" in other.getvalue()
    set_file(reporter, before)
    assert width_of(reporter) > 0
    add_to_summary(reporter, "failed", report_of("call", "failed"))
    assert [report.nodeid for report in reporter.stats["failed"]] == ["a.py::test_it"]
    assert reporter._main_color == "red"


def test_the_definitions_of_a_fixture(pytester: pytest.Pytester) -> None:
    """The last one is the one that is used."""
    source = "import pytest\n\n@pytest.fixture\ndef it(it): pass\n\ndef test_it(it): pass\n"
    pytester.makeconftest("""
import pytest
from pytest_llmbench.plugin.pytest_private import fixture_definitions

@pytest.fixture
def it(): pass

def pytest_generate_tests(metafunc):
    definitions = fixture_definitions(metafunc, "it")
    assert [definition.baseid for definition in definitions] == ["", "test_overridden.py"]
    assert not fixture_definitions(metafunc, "nowhere")
""")
    pytester.makepyfile(test_overridden=source)
    assert pytester.runpytest_inprocess("-p", "no:llmbench").ret == 0


def test_a_character_that_xml_has_not() -> None:
    assert bin_xml_escape("a\x00b") == "a#x00b"


def test_a_test_is_called_twice(pytester: pytest.Pytester) -> None:
    """Each time its fixtures are set up anew, and nothing is reported but by whoever asks for the reports."""
    source = "import pytest\nmade = []\n\n@pytest.fixture\ndef it():\n    made.append(1)\n\ndef test_it(it): pass\n"
    item = pytester.getitem(source, "test_it")
    for count in (1, 2):
        reports = runtestprotocol(item, log=False, nextitem=None)
        assert [(each.when, each.outcome) for each in reports] == [
            (when, "passed") for when in ("setup", "call", "teardown")
        ]
        assert len(item.module.made) == count  # type: ignore[attr-defined]
