"""Health records: what makes a verdict, and that nothing unmeasured ever passes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import Finding, HealthRecord, Report, Severity
from pytest_llmbench.core.record.records import Verdict, write_model

HOSTS = ("a", "b", "c")


def record(report: Report, folder: str = "folder") -> HealthRecord:
    return HealthRecord(
        session="s", token="t", check="limits", family="host", scope="node", system="x", cluster="local",
        hosts=HOSTS, folder=folder, report=report,
    )  # fmt: skip


def finding(host: str | None, severity: Severity) -> Finding:
    return Finding(host=host, kind="limit", severity=severity, message="too low")


def test_each_node_has_its_own_verdict() -> None:
    told = record(Report(findings=(finding("a", Severity.RESET),), unjudged={"b": "silent"}))
    assert [told.state(slot)[0] for slot in range(3)] == [Verdict.FAIL, Verdict.ERROR, Verdict.PASS]
    assert told.state(None)[0] is Verdict.FAIL
    assert set(told.unfit()) == {"a", "b"}


def test_what_is_to_be_watched_fails_nobody_and_a_slot_without_a_node_is_an_error() -> None:
    told = record(Report(findings=(finding("a", Severity.MONITOR),)))
    assert told.state(0) == (Verdict.PASS, "")
    assert told.unfit() == {}
    assert record(Report()).state(3)[0] is Verdict.ERROR


names = st.sampled_from([*HOSTS, "elsewhere"])
whys = st.dictionaries(names, st.text(min_size=1), max_size=4)
reports = st.builds(
    Report, findings=st.lists(st.builds(finding, st.none() | names, st.sampled_from(Severity)), max_size=4).map(tuple),
    unjudged=whys, skipped=whys, problem=st.none() | st.text(min_size=1), skip=st.none() | st.text(min_size=1),
)  # fmt: skip


@given(report=reports, slot=st.integers(0, 4))
def test_a_pass_means_that_nothing_else_is_true(report: Report, slot: int) -> None:
    """The node is there, was asked, answered, and nothing that fails was found about it."""
    verdict, told = record(report).state(slot)
    host = HOSTS[slot] if slot < 3 else None
    wrong = any(found.host == host and found.severity.fails for found in report.findings)
    fine = host is not None and not wrong and host not in report.unjudged and host not in report.skipped
    assert (verdict is Verdict.PASS) == (fine and report.problem is None and report.skip is None)
    assert bool(told) == (verdict is not Verdict.PASS)


@given(report=reports)
def test_the_whole_passes_only_where_every_node_does(report: Report) -> None:
    told = record(report)
    states = {host: told.state(slot)[0] for slot, host in enumerate(HOSTS)}
    if told.state(None)[0] is Verdict.PASS:
        assert set(states.values()) == {Verdict.PASS}
    if report.problem is None and report.skip is None:
        assert {host for host, verdict in states.items() if verdict in {Verdict.FAIL, Verdict.ERROR}} == set(
            told.unfit()
        ) & set(HOSTS)


def test_a_record_is_read_back_whole_or_not_at_all(tmp_path: Path) -> None:
    told = record(Report(findings=(finding("a", Severity.ISOLATE),), evidence={"x": [1, 2]}), str(tmp_path))
    write_model(told.path, told)
    assert HealthRecord.read(told.path) == told
    told.path.write_text(told.path.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"record\.json"):
        HealthRecord.read(told.path)
