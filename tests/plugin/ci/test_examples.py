"""The examples for CI systems in the guide, and our XML, as far as the tools of these systems are at hand."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.docs.documents import CHECKOUT, read_blocks

GUIDE = "docs/how-to/judge/run-in-ci.md"
(RECORDED,) = (CHECKOUT / "tests" / "data" / "session").glob("2*/junit.xml")


@pytest.mark.parametrize(
    ("name", "schema"),
    [(".github/workflows/cluster.yml", "vendor.github-workflows"), (".gitlab-ci.yml", "vendor.gitlab-ci")],
)
def test_an_example_is_valid_by_the_schema_of_its_system(tmp_path: Path, name: str, schema: str) -> None:
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
    assert set(gate) == {"0", "1", "10", "11", "12", "13", "14"}
    assert [code for code, text in gate.items() if "passed" in text] == ["0"]
    for name in (".github/workflows/cluster.yml", ".gitlab-ci.yml", "Jenkinsfile"):
        assert "bash gate.sh --system" in _block(name), name
    jenkins = _block("Jenkinsfile")
    assert jenkins.count("{") == jenkins.count("}")
    (passing,) = re.findall(r"in (\S+)\) ;;", jenkins)
    assert set(passing.split("|")) <= set(gate)


def test_our_xml_is_read_by_the_parser_that_many_tools_use() -> None:
    junitparser = pytest.importorskip("junitparser")
    found = {case.name: case for suite in junitparser.JUnitXml.fromfile(str(RECORDED)) for case in suite}
    assert len(found) == len([*ET.parse(RECORDED).iter("testcase")])
    assert sum(bool(case.result) for case in found.values()) == len(
        [end for tag in ("failure", "error", "skipped") for end in ET.parse(RECORDED).iter(tag)]
    )


def _block(name: str) -> str:
    blocks = read_blocks(GUIDE, (CHECKOUT / GUIDE).read_text(encoding="utf-8"))
    return next(block.text for block in blocks if (block.kind, block.what) == ("file", name))
