"""The examples for CI systems in the guide, and our XML, as far as the tools of these systems are at hand."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.reporting.ci.strict import strict
from tests.docs.documents import CHECKOUT, read_blocks

GUIDE = "docs/how-to/judge/run-in-ci.md"
(RECORDED,) = (CHECKOUT / "tests" / "data" / "session").glob("2*/junit.xml")
SAMPLES = Path(os.environ.get("LLMBENCH_SAMPLES", CHECKOUT.parent / "shared" / "samples"))
# What junit-10.xsd allows: of each element its attributes and children.
SUITE = {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package"}
ALLOWED = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (SUITE | {"file", "log", "url"}, {"testsuite", "properties", "testcase", "system-out", "system-err"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": (
        {"name", "time", "classname", "group"}, {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    **dict.fromkeys(("skipped", "error", "failure"), ({"type", "message"}, set())),
    **dict.fromkeys(("system-out", "system-err"), (set(), set())),
}  # fmt: skip


def reports() -> list[ET.Element]:
    """Strict reports: of a recorded session, and of one with everything that a report may have."""
    everything = (
        "<testsuites><testsuite name='a' tests='1' failures='1' errors='1' time='1234.5' more='x'>"
        "<properties><property name='b' value='c'/></properties>"
        "<testcase name='d' classname='e' time='0.1' file='f' line='1' url='g'>"
        "<properties><property name='h' value='i'/></properties>"
        "<failure message='j' k='k'>l</failure><error message='m'/>"
        "<system-out>n</system-out></testcase>"
        "<testcase name='o'><skipped type='pytest.skip' message='p'>q</skipped></testcase></testsuite></testsuites>"
    )
    return [strict(ET.parse(RECORDED).getroot()), strict(ET.fromstring(everything))]


def test_the_strict_report_has_what_the_schema_allows() -> None:
    """No other element and attribute, and every test, end and text of the report that it is of."""
    for report in reports():
        for element in report.iter():
            attributes, children = ALLOWED[element.tag]
            assert set(element.attrib) <= attributes, element.tag
            assert {child.tag for child in element} <= children, element.tag
        for suite in report.iter("testsuite"):
            assert {"name", "tests", "failures", "errors"} <= set(suite.attrib)
    recorded, everything = reports()
    assert len([*recorded.iter("testcase")]) == len([*ET.parse(RECORDED).iter("testcase")]) > 3
    assert [each.text for each in everything.iter("failure")] == ["l"]
    assert [each.text for each in everything.iter("system-out")] == ["n"]


def test_the_strict_report_is_valid_by_the_schema_of_jenkins() -> None:
    """Where the schema is among the public samples."""
    schema = SAMPLES / "ci" / "junit-10.xsd"
    if not schema.is_file():
        pytest.skip(f"no {schema}: it is in github.com/jenkinsci/xunit-plugin")
    xmlschema = pytest.importorskip("xmlschema")
    known = xmlschema.XMLSchema(str(schema))
    for report in reports():
        known.validate(report)


@pytest.mark.parametrize(
    ("name", "schema"),
    [(".github/workflows/cluster.yml", "vendor.github-workflows"), (".gitlab-ci.yml", "vendor.gitlab-ci")],
)
def test_an_example_is_valid_by_the_schema_of_its_system(tmp_path: Path, name: str, schema: str) -> None:
    """As check-jsonschema has these schemas; a key that is wrong is found."""
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    example = tmp_path / "example.yml"
    text = _block(name)
    for written, code in ((text, 0), (f"{text}\njobs: 7\n", 1)):
        example.write_text(written)
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(example)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout


def test_every_example_calls_the_gate_with_the_codes_it_knows() -> None:
    """The codes that an example lets pass are codes of the gate, and 0 is the only one that says it passed."""
    gate = dict(re.findall(r'^ +(\d+)\) echo "(.*)" ;;$', _block("gate.sh"), re.MULTILINE))
    assert set(gate) == {"0", "1", "10", "11", "12", "13"}
    assert [code for code, text in gate.items() if "passed" in text] == ["0"]
    for name in (".github/workflows/cluster.yml", ".gitlab-ci.yml", "Jenkinsfile"):
        assert "bash gate.sh --system" in _block(name), name
    jenkins = _block("Jenkinsfile")
    assert jenkins.count("{") == jenkins.count("}")
    (passing,) = re.findall(r"in (\S+)\) ;;", jenkins)
    assert set(passing.split("|")) <= set(gate)


def test_our_xml_is_read_by_the_parser_that_many_tools_use() -> None:
    """With the outcome, text and properties of each case."""
    junitparser = pytest.importorskip("junitparser")
    found = {case.name: case for suite in junitparser.JUnitXml.fromfile(str(RECORDED)) for case in suite}
    assert len(found) == len([*ET.parse(RECORDED).iter("testcase")])
    assert sum(bool(case.result) for case in found.values()) == len(
        [end for tag in ("failure", "error", "skipped") for end in ET.parse(RECORDED).iter(tag)]
    )


def _block(name: str) -> str:
    """A file of the guide."""
    blocks = read_blocks(GUIDE, (CHECKOUT / GUIDE).read_text(encoding="utf-8"))
    return next(block.text for block in blocks if (block.kind, block.what) == ("file", name))
