"""The output for CI systems: the word, text that becomes neither markup nor a command, and `latest`."""

import html
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.plugin.output.junit_cases import complete, lasting_name
from pytest_llmbench.reporting.ci import annotate_tests, markdown, summary
from pytest_llmbench.reporting.html.rows import KINDS
from pytest_llmbench.reporting.verdict import DETAILED, WORST_FIRST, SessionVerdict, decide, detailed_exit_code
from pytest_llmbench.session.folder import point_to_latest

ROWS = st.lists(st.sampled_from([*map(str, Verdict), "LATER"]), max_size=6)
LACKS = "run tiny cannot be judged (engine_missing): engine torch needs PyTorch: pip install 'pytest-llmbench[torch]'"
VERDICT: dict[str, Any] = {
    "verdict": "slow", "reason": "why", "counts": {"FAIL": 1}, "exit_code": 1, "session": "s", "ended": "e",
    "llmbench_version": "1",
}  # fmt: skip


@given(
    ROWS, st.sampled_from([0, 1, 2, 3, 4, 5, 6, 10, 77]), st.booleans(), st.booleans(), st.integers(0, 3),
    st.sampled_from(["", "Ctrl-C"]), st.sampled_from(["", LACKS]),
)  # fmt: skip
def test_a_pass_is_what_is_left(
    verdicts: list[str], code: int, simulated: bool, clause: bool, unjudged: int, interrupted: str, why: str
) -> None:
    word, reason = decide(
        [{"verdict": verdict, "reason": why} for verdict in verdicts], incomplete=["4.1"] if clause else [],
        simulated=simulated, interrupted=interrupted,
        unjudged=["run"] * unjudged, runs=3, exit_code=code,
    )  # fmt: skip
    good = {"PASS", "XFAIL"} & set(verdicts) and set(verdicts) <= {"PASS", "XFAIL", "SKIP", "INCOMPLETE"}
    assert (word == "pass") == (bool(good) and code == 0 and not simulated and not clause and unjudged < 3)
    assert bool(reason) == (word != "pass")
    ended = code == 2 and interrupted != ""
    assert (word == "interrupted") == ended
    assert not ended or reason.startswith("Ctrl-C ended the session: ")
    if not ended and ("LATER" in verdicts or code not in {0, 1, 10}):
        assert word == "broken"
    elif not ended and "ERROR" in verdicts:
        assert word == ("not_measured" if why else "broken")
    assert detailed_exit_code(word, code) in ({*DETAILED.values()} if code == 1 and word in DETAILED else {code})


@given(st.text(max_size=60))
def test_text_of_others_is_no_markup(text: str) -> None:
    """In Markdown it is one cell of one line, without HTML; in an annotation one line that ends where it should."""
    cell = markdown(f"{text}|</td><script>`x`[a](b)")
    assert len(cell.splitlines()) <= 1
    assert not re.search(r"(?<!\\)[|`\[\]<]", cell)
    assert "<" not in cell
    row = {"verdict": "FAIL", "test": f"a::b[{text},c:d]", "file": "a.py", "line": 3, "reason": f"50% of {text}\n::x::"}
    (line,) = annotate_tests([row], Path("/nowhere"), warned=False)
    assert "\n" not in line
    head, _, message = line.removeprefix("::error ").partition("::")
    assert head.startswith("file=a.py,line=3,title=")
    assert head.count(",") == 2
    assert message.startswith("50%25 of ")
    assert not set("\r\n\x1b\x85\u2028") & set(message)


def test_annotations_are_as_many_as_github_shows() -> None:
    rows = [{"verdict": "ERROR", "test": f"t{i}"} for i in range(12)] + [{"verdict": "FAIL", "test": "e"}]
    lines = [*annotate_tests([*rows, {"verdict": "PASS", "test": "p"}], Path("/"), warned=False)]
    assert len(lines) == 10
    assert lines[0].startswith("::error title=FAIL e::")
    assert lines[-1].endswith("4 more tests failed: see the summary of the job")
    (warned,) = annotate_tests([{"verdict": "INCONCLUSIVE", "test": "t"}], Path("/"), warned=True)
    assert warned.startswith("::warning ")


def test_nodes_alike_are_one_row_and_a_bad_node_comes_first() -> None:
    row = {"check": "limits", "verdict": "SKIP", "test": "fit[limits-slot0]"}
    rows = [{**row, "hosts": f"n{number}"} for number in range(10)]
    rows += [{**row, "verdict": "FAIL", "hosts": hosts, "test": hosts} for hosts in ("n0,n1", "n3")]
    *_, bad, whole, skipped = [line for line in summary(SessionVerdict(**VERDICT), rows, "s") if line.startswith("|")]
    assert [line.split(" | ")[1] for line in (bad, whole)] == ["n3", "n0,n1"]
    assert "slot0\\] and 9 more | n0, n1, n2, n3 and 6 more |" in skipped


def test_every_table_has_one_order() -> None:
    """The report has kinds of its own between those of the verdicts."""
    assert [kind.upper() for kind in KINDS if kind.upper() in WORST_FIRST] == [*WORST_FIRST]


def test_a_summary_of_very_many_tests_is_short() -> None:
    """The worst of them are there, with how many are not, and what to do about them."""
    rows = [{"verdict": "PASS", "test": f"p{i}"} for i in range(5000)]
    rows.append({"verdict": "FAIL", "test": "bad", "reason": "too slow", "cause": "network: a link", "action": "look"})
    text = "\n".join(summary(SessionVerdict(**VERDICT), rows, "reports/s"))
    assert len(text) < 30_000
    for part in ("# Cluster verdict: slow", "| FAIL | bad |", "4801 more tests", "network: a link", "None: look"):
        assert part in text, part


@pytest.mark.parametrize(("name", "properties", "lasts"), [
    ("test_fit[limits-slot3]", {"check": "limits", "slot": "3", "hosts": "n5"}, "test_fit[limits-n5]"),
    ("test_fit[a-limits-slot3-b]", {"check": "limits", "slot": "3", "hosts": "n5"}, "test_fit[a-limits-n5-b]"),
    ("test_fit[limits-slot31]", {"check": "limits", "slot": "3", "hosts": "n5"}, "test_fit[limits-slot31]"),
    ("test_fit[limits-slot3]", {"check": "limits", "slot": "3", "hosts": ""}, "test_fit[limits-slot3]"),
    ("test_fit[limits]", {"check": "limits", "slot": "", "hosts": ""}, "test_fit[limits]"),
    ("test_it[tiny-slot3]", {"run": "tiny"}, "test_it[tiny-slot3]"),
])  # fmt: skip
def test_the_name_of_a_case_lasts(name: str, properties: dict[str, str], lasts: str) -> None:
    assert lasting_name(name, properties) == lasts


def test_two_cases_keep_names_that_differ() -> None:
    cases = []
    for slot in ("0", "1"):
        case = ET.Element("testcase", classname="t", name=f"test_fit[limits-slot{slot}]")
        told = {"verdict": "PASS", "check": "limits", "slot": slot, "host": "n1", "hosts": "n1"}
        properties = ET.SubElement(case, "properties")
        for key, value in told.items():
            ET.SubElement(properties, "property", name=key, value=value)
        cases.append(case)
    complete(cases, "reports/s", places=True)
    complete(cases, "reports/s", places=True)
    assert [case.get("name") for case in cases] == ["test_fit[limits-slot0]", "test_fit[limits-slot1]"]
    assert [len(case.findall("system-out")) for case in cases] == [1, 1]
    complete(cases[:1], "reports/s", places=True)
    assert cases[0].get("name") == "test_fit[limits-n1]"


def test_the_link_leads_to_the_latest_session(tmp_path: Path) -> None:
    """The second session replaces the link of the first."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        point_to_latest(tmp_path / name)
    assert (tmp_path / "latest").readlink() == Path("second")


def test_what_is_no_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(FileExistsError, match="must be a link"):
        point_to_latest(tmp_path / "first")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_cut_verdict_is_none(tmp_path: Path) -> None:
    """A verdict file without any one of its parts is refused."""
    (tmp_path / "verdict.json").write_text('{"schema_version": 1, "verdict": "pass"}')
    with pytest.raises(ConfigError, match="no verdict of a session of schema version 1"):
        SessionVerdict.read(tmp_path / "verdict.json")


def test_html_is_escaped_once() -> None:
    assert html.unescape(markdown("a & b")) == "a & b"
