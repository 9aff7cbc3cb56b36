"""Every check of hosts on three real processes that pose as nodes, and on one."""

import pytest

from pytest_llmbench.checks.base import CheckSettings, all_checks, get_check
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import ProcessFleet, cpu_site

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


def test_facts_are_asked_for_once(fleet: ProcessFleet) -> None:
    for name in ("limits", "memory", "software", "tuning"):
        run(name, fleet)
    assert [probe.name for probe in fleet.asked].count("host-facts") == 1


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


def test_hints_never_fail(fleet: ProcessFleet) -> None:
    assert {finding.severity for finding in run("tuning", fleet).findings} <= {Severity.MONITOR}
