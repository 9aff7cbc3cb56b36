"""What a CI system reads of a session: XML with evidence, a summary, annotations, one word, exit codes; examples."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import TINY, Result, UserFolder
from tests.docs.documents import CHECKOUT, read_blocks
from tests.support.standin import RECIPE, log_at_hand

LEARNS = TINY["references"][0]
HERE = {"system": "elsewhere"}
FAST = {**LEARNS, "name": "fast", "statistic": "throughput", "at_least": "1 words/s", "applies_to": HERE}
SLOW = {**FAST, "name": "slow", "at_least": "900M words/s"}


@pytest.fixture
def ci(user: UserFolder, monkeypatch: pytest.MonkeyPatch) -> UserFolder:
    """A user whose logs of two runs are at hand: `tiny` is sane, `cut` lacks its end."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    log_at_hand(user)
    log = log_at_hand(user, "cut", references=[LEARNS]) / "run.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]))
    ini = user.path / "pytest.ini"
    ini.write_text(ini.read_text().replace("llmbench_require_verdict = no\n", ""))
    return user


def judged(user: UserFolder, *references: Mapping[str, Any], args: tuple[str, ...] = ("-k", "tiny")) -> Result:
    """A session over the logs, by these references of `tiny`."""
    user.recipe(**{**RECIPE, "references": list(references)})
    shutil.rmtree(user.path / "reports", ignore_errors=True)
    return user.run_here("--llmbench-replay", "logs", *args)


def verdict(result: Result) -> dict[str, Any]:
    """The content of `verdict.json`, whose exit code is that of pytest."""
    found: dict[str, Any] = json.loads((result.session / "verdict.json").read_text())
    assert found["exit_code"] == result.returncode
    return found


def cases(path: Path) -> dict[str, ET.Element]:
    return {case.get("name", ""): case for case in ET.parse(path).iter("testcase")}


def test_every_case_has_its_evidence(ci: UserFolder) -> None:
    result = judged(ci, LEARNS, SLOW, args=("-k", "tiny", "-rP"))
    assert result.returncode == 1, result.text
    # pytest-html and Allure show the parameters of a test, and what one that passed has printed.
    assert "reference = Reference(slow: throughput >= 900,000,000 words/s)" in result.text
    passes = result.text.partition("= PASSES =")[2].partition("llmbench verdicts")[0]
    assert re.search(r"^measured: \S+ nat \(loss_drop\)\nbound: >= 0\.01 nat$", passes, re.MULTILINE)
    # A failure has its reason once, and pytest's summary repeats its first line.
    assert result.text.count("run record: ") == 1
    assert verdict(result)["unconfirmed"] == ["tiny"]
    found = cases(result.session / "junit.xml")
    assert [suite.get("name") for suite in ET.parse(result.session / "junit.xml").iter("testsuite")] == ["llmbench"]
    assert set(found) == {"test_reference[tiny-learns]", "test_reference[tiny-slow]"}
    record = f"reports/{result.session.name}/runs/tiny/record.json"
    for name, case in found.items():
        (output,) = (each.text or "" for each in case.iter("system-out"))
        told = dict(line.partition(": ")[::2] for line in output.splitlines())
        assert {"measured", "bound", "interval", "hosts", "record"} <= set(told), name
        assert told["record"] == record
        assert (ci.path / record).is_file()
        properties = {each.get("name"): each.get("value") or "" for each in case.iter("property")}
        assert (case.get("file"), case.get("line")) == ("test_user.py", "2")
        assert len(properties) <= 12
        assert str(ci.path) not in json.dumps(properties)
        assert properties["test"] == f"test_user.py::{name}"
        assert properties["record"] == "runs/tiny/record.json"
        assert float(properties["value"]) > 0
    assert "words/s (throughput)" in found["test_reference[tiny-slow]"].findtext("system-out", "")
    judgement = next(each for each in result.record()["judgements"] if each["reference"] == "slow")
    assert (judgement["at_least"], judgement["at_most"], judgement["unit"]) == (9e8, None, "words/s")
    assert 0 < judgement["value"] < judgement["at_least"]


def test_a_family_that_was_asked_for_keeps_its_attributes(ci: UserFolder) -> None:
    """With xunit2 in the ini file, a case has no attribute that the family does not know; its evidence is there."""
    result = judged(ci, FAST, args=("-k", "tiny", "-o", "junit_family=xunit2", "--junitxml=report.xml"))
    for path in (result.session / "junit.xml", ci.path / "report.xml"):
        (case,) = cases(path).values()
        assert set(case.attrib) == {"name", "classname", "time"}
        assert "measured: " in case.findtext("system-out", "")


@pytest.mark.parametrize(("references", "args", "word", "usual", "detailed"), [
    ([LEARNS, FAST], "tiny", "pass", 0, 0),
    ([LEARNS, SLOW], "tiny", "slow", 1, 1),
    ([LEARNS, SLOW], "tiny or cut", "broken", 1, 13),
    ([LEARNS], "tiny", "nothing_judged", 10, 10),
    ([{**FAST, "applies_to": {"gpu": "A100-SXM4-80GB", "gpus": 8}}], "tiny", "nothing_judged", 10, 10),
])  # fmt: skip
def test_the_one_word(ci: UserFolder, references: list[Any], args: str, word: str, usual: int, detailed: int) -> None:
    """The worst that is true of the session; an exit code of its own for each on request."""
    result = judged(ci, *references, args=("-k", args))
    told = verdict(result)
    assert (told["verdict"], result.returncode) == (word, usual), result.text
    assert sum(told["counts"].values()) == len(result.cases)
    assert bool(told["reason"]) == (word != "pass")
    result = judged(ci, *references, args=("-k", args, "-o", "llmbench_exit_codes=detailed"))
    assert (verdict(result)["verdict"], result.returncode) == (word, detailed), result.text


def test_a_clause_that_was_not_judged_is_incomplete(ci: UserFolder) -> None:
    """INCOMPLETE comes before a number that is too low, and after a run that is broken."""
    (ci.path / "clauses.yaml").write_text("'4.10': test_reference[[]tiny-gone]\n")
    given = ("--llmbench-require=clauses.yaml", "-o", "llmbench_exit_codes=detailed")
    result = judged(ci, SLOW, args=("-k", "tiny", *given))
    assert (verdict(result)["verdict"], result.returncode) == ("incomplete", 12), result.text
    assert verdict(judged(ci, SLOW, args=given))["verdict"] == "broken"


def test_a_session_that_another_test_fails_is_no_pass(ci: UserFolder) -> None:
    ci.test()
    ci.test("def test_other():\n    assert False\n", "test_other.py")
    result = judged(ci, FAST, args=())
    assert (verdict(result)["verdict"], result.returncode) == ("broken", 1)
    (ci.path / "test_other.py").unlink()


def test_no_verdict_of_an_earlier_process_stays(ci: UserFolder) -> None:
    """A session that runs no test writes no verdict: an absent file is no pass."""
    result = judged(ci, FAST, args=("-k", "tiny", "--collect-only"))
    assert result.returncode == 0
    assert result.found is None


def test_the_summary_is_appended_and_tests_are_annotated(ci: UserFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    step = ci.path / "step.md"
    step.write_text("before\n")
    assert "::error" not in judged(ci, SLOW).text
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(ci.path.parent))
    result = judged(ci, SLOW)
    (line,) = (line for line in result.text.splitlines() if line.startswith("::error"))
    assert line.startswith(
        f"::error file={ci.path.name}/test_user.py,line=2,title=FAIL test_user.py%3A%3Atest_reference"
    )
    summary = (result.session / "summary.md").read_text()
    assert step.read_text() == f"before\n{summary}\n"
    assert summary.startswith("# Cluster verdict: slow\n")
    for heading in ("| Verdict | Test |", "## Causes", "## What to do"):
        assert heading in summary


MAKES_REPORT = """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        {}
    return report
"""
GAMES = {
    "makereport": MAKES_REPORT.format('report.outcome, report.longrepr = "passed", None'),
    "makereport-skips": MAKES_REPORT.format('report.outcome, report.wasxfail = "skipped", "known"'),
    "makereport-unknown": MAKES_REPORT.format('report.outcome = "rerun"'),
    "teststatus": """
        def pytest_report_teststatus(report, config):
            if report.failed:
                return "passed", ".", "PASSED"
    """,
    "exitstatus": """
        import pytest
        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(session):
            session.exitstatus = 0
    """,
}


@pytest.mark.parametrize("game", GAMES)
def test_a_failure_stays_one_whoever_denies_it(ci: UserFolder, game: str) -> None:
    """The verdict, the XML and the exit code stay, and a line says that another plugin changed the report."""
    ci.pytester.makeconftest(GAMES[game])
    result = judged(ci, SLOW, args=("-k", "tiny or cut"))
    assert result.returncode == 1, result.text
    assert verdict(result)["verdict"] == "broken"
    assert {case.properties["verdict"]: case.outcome for case in result.cases.values()} == {
        "FAIL": "failure", "ERROR": "error"
    }  # fmt: skip
    if game != "exitstatus":
        assert "reported 2 failed tests as something else" in result.text


def test_a_failure_that_is_expected_stays_expected(ci: UserFolder) -> None:
    """The marker `xfail` does not deny a verdict. For `pytest.raises`, see the tests of comparisons."""
    ci.test(
        "import pytest\nfrom pytest_llmbench import Quantity\n\n"
        "@pytest.mark.xfail\ndef test_marked(run):\n    assert run.throughput >= Quantity('900M words/s')\n\n"
        "def test_holds(run):\n    assert run.throughput >= Quantity('1 words/s')\n"
    )
    result = judged(ci, FAST)
    assert result.returncode == 0, result.text
    assert "something else" not in result.text
    assert {name: case.outcome for name, case in result.cases.items()} == {
        "test_marked[tiny]": "skipped", "test_holds[tiny]": "passed"
    }  # fmt: skip


def test_with_xdist(ci: UserFolder) -> None:
    ci.recipe(**{**RECIPE, "references": [SLOW]})
    ci.pytester.makeconftest(GAMES["makereport"])
    result = ci.run("--llmbench-replay", "logs", "-n2", "-k", "tiny", "-o", "llmbench_exit_codes=detailed")
    assert (verdict(result)["verdict"], result.returncode) == ("slow", 1), result.text
    (case,) = cases(result.session / "junit.xml").values()
    assert "verdict: FAIL" in case.findtext("system-out", "")
    assert case.find("failure") is not None


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
