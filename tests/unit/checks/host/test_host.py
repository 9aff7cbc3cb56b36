"""Every check of hosts on three real processes that pose as nodes, and on one; and clocks against each other."""

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import CheckSettings, all_checks, get_check
from pytest_llmbench.checks.host.base import find_differing, has_one_clock, is_network, name_sizes
from pytest_llmbench.checks.host.clock import find_apart, find_outside, find_unkept, why_unknown
from pytest_llmbench.checks.host.environment import RULES, choose_devices
from pytest_llmbench.checks.host.nodes.clock import NodeClock
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import AnsweringFleet, ProcessFleet, cpu_site, mount_of_kind
from tests.support.references import reference

HOST_CHECKS = [
    "clock", "container_runtime", "disk", "environment", "jit_cache", "limits", "memory", "shared_folder", "software",
    "tuning",
]  # fmt: skip
# The machine that the tests run on may be busy, and its limits are its own.
ANY_MACHINE = {
    "memory": {"available_gib": 0},
    "disk": {"free_gib": 0, "free_inodes_percent": 0},
    "limits": {"nofile": 1, "nproc": 1},
}
NOTHING_ASKED = {"container_runtime", "environment"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    return ProcessFleet(site=cpu_site(3), hosts=("a", "b", "c"), folder=tmp_path_factory.mktemp("fleet"))


def run(name: str, fleet: ProcessFleet) -> Report:
    return get_check(name).run(fleet, CheckSettings(options=ANY_MACHINE.get(name, {})))


def test_these_are_the_checks_of_hosts() -> None:
    """Each judges node by node, and they come before those of any other family."""
    checks = [check for check in all_checks().values() if check.family == "host"]
    assert sorted(check.name for check in checks) == HOST_CHECKS
    assert {check.scope for check in checks} == {"node"}
    assert [check.name for check in all_checks().values()][: len(checks)] == [check.name for check in checks]


@pytest.mark.parametrize("name", HOST_CHECKS)
def test_nodes_with_nothing_wrong_are_fit(name: str, fleet: ProcessFleet) -> None:
    report = run(name, fleet)
    assert not [str(finding) for finding in report.findings if finding.severity.fails]
    assert (report.problem, report.unjudged, report.skipped) == (None, {}, {})
    assert (report.skip is not None) == (name in NOTHING_ASKED)
    assert {reading.statistic for reading in report.readings} == get_check(name).statistics.keys()
    assert {reading.unit for reading in report.readings} <= set(get_check(name).statistics.values())


def test_facts_are_asked_for_once_and_hints_never_fail(fleet: ProcessFleet) -> None:
    for name in ("limits", "memory", "software", "tuning"):
        run(name, fleet)
    assert [probe.name for probe in fleet.asked].count("host-facts") == 1
    assert {finding.severity for finding in run("tuning", fleet).findings} <= {Severity.MONITOR}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    return ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("name", HOST_CHECKS)
def test_one_node_alone(name: str, one: ProcessFleet) -> None:
    report = run(name, one)
    assert not [str(finding) for finding in report.findings if finding.severity.fails]
    assert (report.skip is not None) == (name in NOTHING_ASKED)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    """Two nodes; the interpreter of the second finds another module than it wants, and dies."""
    folder = tmp_path_factory.mktemp("half")
    (folder / "pydantic.py").write_text("raise SystemExit('broken')", encoding="utf-8")
    return ProcessFleet(site=cpu_site(2), hosts=("a", "b"), folder=folder, env={"b": {"PYTHONPATH": str(folder)}})


@pytest.mark.parametrize("name", [name for name in HOST_CHECKS if name not in NOTHING_ASKED])
def test_a_node_that_cannot_answer_is_no_pass(name: str, half: ProcessFleet) -> None:
    report = run(name, half)
    assert set(report.unjudged) == {"b"}
    assert report.problem is None


VALUES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sampled_from(["1", "2", "3"]), max_size=12)
DEVICES = st.sets(st.from_regex(r"[a-z]{1,3}[0-9]{0,2}", fullmatch=True), max_size=6)


@given(VALUES)
def test_all_stand_out_who_do_not_have_what_most_have(values: dict[str, str]) -> None:
    ranked = Counter(values.values()).most_common()
    found = find_differing(values)
    if len(ranked) < 2:
        assert not found
    elif ranked[0][1] > ranked[1][1]:
        assert found.keys() == {host for host, value in values.items() if value != ranked[0][0]}
    else:
        assert found.keys() == values.keys()
        assert all(value in words for words in found.values() for value, _ in ranked)


def test_both_values_and_who_agrees_are_named() -> None:
    usual = {f"n{number}": "5.15" for number in range(9)}
    assert find_differing({**usual, "x": "5.14"}) == {"x": "5.14; 5.15 on n0, n1, n2, n3 and 5 more"}
    assert find_differing({"a": "1", "b": "2"})["a"] == "1; no majority of the nodes agrees: 1 on a; 2 on b"


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 2**45)), st.floats(0, 0.5))
def test_sizes_of_one_name_are_close(sizes: dict[str, int], tolerance: float) -> None:
    """No group is wider than the tolerance, up to the digits of its name."""
    named = name_sizes(sizes, tolerance)
    assert named.keys() == sizes.keys()
    for name in set(named.values()):
        group = [sizes[host] for host in sizes if named[host] == name]
        # Two groups may have one name where they are the same to the last digit that is written.
        assert max(group) <= min(group) * (1 + tolerance) + 2**30 / 50


@given(DEVICES, st.sampled_from(sorted(RULES)), st.sampled_from(["", "^", "=", "^="]), DEVICES)
def test_a_list_and_its_complement_part_the_devices(there: set[str], name: str, before: str, named: set[str]) -> None:
    rule, listed = RULES[name], ",".join(sorted(named))
    devices, absent = choose_devices(before + listed, there, rule)
    assert devices <= there
    if before.startswith("^"):
        assert devices == there - choose_devices(before[1:] + listed, there, rule)[0]
        assert not absent
    else:
        assert set(absent) <= named - there


def test_names_of_file_systems() -> None:
    network = {"nfs4": True, "fuse.juicefs": True, "fuse.fuse-overlayfs": False}
    one_clock = {"nfs": True, "xfs": True, "lustre": False, "new": False}
    assert {kind: is_network(mount_of_kind(kind)) for kind in network} == network
    assert not is_network(None)
    assert {kind: has_one_clock(mount_of_kind(kind)) for kind in one_clock} == one_clock


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
