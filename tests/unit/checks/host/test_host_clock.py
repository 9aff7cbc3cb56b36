"""Clocks: against each other where one clock stamps the shared folder's files, by their keeper's word elsewhere."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.clock import find_apart, find_outside, find_unkept, why_unknown
from pytest_llmbench.checks.host.nodes.clock import NodeClock
from tests.support.fleet import AnsweringFleet, cpu_site, mount_of_kind
from tests.support.references import reference


@pytest.mark.parametrize(("skews", "off"), [
    ({}, set()), ({"a": 99.0}, set()), ({"a": 5.0, "b": 5.5, "c": 5.2}, set()),
    ({"a": 0.0, "b": 0.1, "c": 3.0}, {"c"}), ({"a": 0.0, "b": -3.0, "c": 0.1, "d": 0.2}, {"b"}),
    ({"a": 0.0, "b": 1.5}, {"a", "b"}), ({"a": 0.0, "b": 0.1, "c": 9.0, "d": 9.1}, {"a", "b", "c", "d"}),
])  # fmt: skip
def test_who_is_apart(skews: dict[str, float], off: set[str]) -> None:
    """The server's own clock counts for nothing: nodes are held against each other."""
    assert {finding.host for finding in find_apart(skews, 1.0)} == off


def test_a_finding_says_how_far_and_which_way() -> None:
    (finding,) = find_apart({"a": 0.0, "b": 0.0, "c": -2.5}, 1.0)
    assert finding.message == "2.500 s behind the other nodes; 1 s are allowed"


@given(st.dictionaries(st.text(max_size=3), st.floats(-1e3, 1e3), min_size=2))
def test_clocks_more_than_two_limits_apart_are_never_all_well(skews: dict[str, float]) -> None:
    found = [*find_apart(skews, 1.0)]
    spread = max(skews.values()) - min(skews.values())
    assert found or spread <= 2.0
    assert not found or spread > 1.0


def node(**changes: Any) -> NodeClock:
    """What a node says whose folder has no clock of its own."""
    told = {
        "time": 1000.0, "ahead_s": 0.0, "uncertainty_s": 0.001, "mount": mount_of_kind("lustre"),
        "kernel": {"synchronised": True, "max_error_s": 0.1}, **changes,
    }  # fmt: skip
    return NodeClock.model_validate(told)


@pytest.mark.parametrize(("own", "off"), [(999.0, 0), (1011.0, 0), (998.0, 1), (1012.0, 1)])
def test_a_time_before_the_step_began_or_after_it_ended(own: float, off: int) -> None:
    found = [*find_outside({"a": node(time=own)}, 1000.0, 1010.0, 1.0)]
    assert len(found) == off
    assert all("at least 2.000 s off" in finding.message for finding in found)


@pytest.mark.parametrize(("kernel", "judged"), [
    ({"synchronised": True, "max_error_s": 0.1}, True), ({"synchronised": True, "max_error_s": 16.0}, False),
    ({"synchronised": False, "max_error_s": 0.1}, False), (None, False),
])  # fmt: skip
def test_without_a_server_clock_only_the_keeper_vouches(kernel: dict[str, Any] | None, judged: bool) -> None:
    why = why_unknown(node(kernel=kernel), 1.0)
    assert (why is None) == judged
    assert why is None or "the shared folder is lustre" in why


@pytest.mark.parametrize(("changes", "why"), [
    ({}, "the shared folder is lustre, where files may have the node's own time"),
    ({"mount": None}, "the shared folder is unknown"),
    ({"mount": mount_of_kind("nfs4"), "uncertainty_s": 1.5}, "took 3.000 s"),
    ({"mount": mount_of_kind("nfs4")}, "there is no other node's to compare it with"),
])  # fmt: skip
def test_why_a_clock_cannot_be_judged(changes: dict[str, Any], why: str) -> None:
    """The last is what is left of several nodes when the others do not answer."""
    assert why in str(why_unknown(node(kernel=None, **changes), 1.0))


def test_a_clock_that_nobody_keeps_is_worth_a_look() -> None:
    facts = {"a": node(), "b": node(kernel={"synchronised": False, "max_error_s": 16.0}), "c": node(kernel=None)}
    (finding,) = find_unkept(facts)
    assert finding.host == "b"
    assert not finding.severity.fails


def test_a_clock_that_cannot_be_measured_is_no_pass_of_a_reference() -> None:
    """Without a reference the keeper's word is enough."""
    told = node(time=time.time()).model_dump(mode="json")
    fleet = AnsweringFleet(cpu_site(2), ("a", "b"), lambda *_: told)
    for bounds, unjudged in (((), set()), ((reference("clock_skew", at_most="100 ms"),), {"a", "b"})):
        report = get_check("clock").run(fleet, CheckSettings(references=bounds))
        assert (len(report.findings), set(report.unjudged)) == (0, unjudged)
