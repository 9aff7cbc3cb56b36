"""The DCGM check: what dcgmi leaves, in every version's words, and real nodes whose dcgmi is a stand-in."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.dcgm.check import DcgmVerdict, ExpectedTests, judge
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticOutput
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.record.health import HealthRecord, Report, Severity
from pytest_llmbench.core.record.records import Verdict
from tests.standins.dcgm_outputs import (
    BANDWIDTH,
    FAULTY,
    NOT_ALLOCATED,
    PERSISTENCE,
    REMAP,
    THERMAL,
    VERSIONS,
    Changes,
    Error,
    Said,
    printed,
)
from tests.support.fleet import ProcessFleet, cpu_site
from tests.support.samples import sample

HOSTS = ("n1", "n2")
SKIPPED_EUD: Changes = {"eud": {0: Said("Skip"), 1: Said("Skip")}}
ALL_SKIPPED: Changes = {
    name: {0: Said("Skip"), 1: Said("Skip")} for name in ("software", "memory", "pcie", "diagnostic", "targeted_stress")
}
STANDIN = Path(__file__).parents[2] / "standins" / "dcgmi.py"


def output_of(stdout: str, code: int | None, stderr: str = "") -> DiagnosticOutput:
    return DiagnosticOutput(command="dcgmi diag", code=code, seconds=7.0, stdout=stdout, stderr=stderr)


def judged(
    stdout: str, code: int | None = 0, *, stderr: str = "", level: int = 3, skips: tuple[str, ...] = ()
) -> DcgmVerdict:
    expected = ExpectedTests(level=level, gpus=2, allowed_skips=skips)
    return judge("n1", output_of(stdout, code, stderr), expected)


def verdict(report: Report, host: str) -> Verdict:
    record = HealthRecord(
        session="s", token="t", check="dcgm", family="dcgm", scope="node", system="test", cluster="local",
        hosts=HOSTS, folder=".", report=report,
    )  # fmt: skip
    return record.state(HOSTS.index(host))[0]


def passes(each: DcgmVerdict) -> bool:
    report = Report(findings=each.findings, unjudged={"n1": "; ".join(each.unjudged)} if each.unjudged else {})
    return verdict(report, "n1") is Verdict.PASS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("status", "code"), [("Fail", 226), ("Fail", 0), ("Warn", 0)])
def test_a_faulty_memory_isolates(version: str, status: str, code: int) -> None:
    result = judged(printed(version, {"memory": {1: Said(status, FAULTY)}}), code)
    (finding,) = result.findings
    assert (finding.host, finding.subject, finding.severity) == ("n1", "GPU 1", Severity.ISOLATE)
    assert FAULTY.text in finding.message
    assert bool(result.unjudged) == (status == "Fail" and code == 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("test", ["software", "memory", "diagnostic", "pcie"])
@pytest.mark.parametrize("code", [0, 1, 127, 203, 205, 217, 226, -9, None])
def test_a_node_passes_where_text_and_exit_status_both_say_so(version: str, test: str, code: int | None) -> None:
    for status in ("Pass", "Skip", "Warn", "Fail"):
        assert passes(judged(printed(version, {test: {1: Said(status)}}), code)) == (status == "Pass" and code == 0)


def test_results_that_contradict_each_other_are_no_pass() -> None:
    """Two forms of them, an error of dcgmi's own beside them, a status that is said twice."""
    whole, failing = printed("4.4.2"), printed("3.3.9", {"memory": {1: Said("Fail", FAULTY)}})
    both = judged(whole + failing)
    assert (passes(both), both.unjudged[0]) == (False, "the output of dcgmi cannot be read: it has results of 2 nodes")
    lost = judged(f"Error: lost the connection\n{whole}")
    assert lost.unjudged == ("dcgmi printed results, and also 'Error: lost the connection'",)
    twice = judged(whole.replace('"status": "Pass"', '"status": "Fail", "status": "Pass"', 1))
    assert twice.unjudged[0] == "the output of dcgmi cannot be read: a result of software has a key twice"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_setting_is_no_broken_hardware(version: str) -> None:
    (finding,) = judged(printed(version, {"software": {1: Said("Fail", PERSISTENCE)}}), 226).findings
    assert (finding.kind, finding.severity) == ("dcgm_configuration", Severity.CONFIGURE)


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize(("error", "severity"), [
    (FAULTY, Severity.ISOLATE), (REMAP, Severity.RESET), (BANDWIDTH, Severity.RESET), (THERMAL, Severity.RESET),
    (PERSISTENCE, Severity.CONFIGURE),
])  # fmt: skip
def test_dcgm_says_how_severe_a_failure_is(version: str, error: Any, severity: Severity) -> None:
    (finding,) = judged(printed(version, {"pcie": {0: Said("Fail", error)}}), 226).findings
    assert finding.severity is severity
    assert finding.action


@pytest.mark.parametrize(
    ("test", "category", "severity"),
    [("software", 10, Severity.ISOLATE), ("memory", 3, Severity.CONFIGURE), ("memory", 16, Severity.ISOLATE)],
)
def test_without_a_severity_the_category_says_it(test: str, category: int, severity: Severity) -> None:
    changes = {test: {1: Said("Fail", Error("unknown", 900, category, 3))}}
    assert judged(printed("4.4.2", changes), 226).findings[0].severity is severity


@pytest.mark.parametrize(
    ("name", "severity"), [("Inforom", Severity.RESET), ("Page Retirement/Row Remap", Severity.RESET),
                           ("Denylist", Severity.CONFIGURE)],
)  # fmt: skip
def test_without_a_severity_the_test_says_it(name: str, severity: Severity) -> None:
    text = printed("3.3.9", {"software": {0: Said("Fail")}})
    (finding,) = judged(text.replace("Persistence Mode", name), 226).findings
    assert finding.severity is severity


@pytest.mark.parametrize("version", VERSIONS)
def test_a_skip_is_no_pass(version: str) -> None:
    skipped = printed(version, SKIPPED_EUD)
    assert re.search(r"eud", "; ".join(judged(skipped).unjudged), re.IGNORECASE)
    allowed = judged(skipped, skips=("EUD Test",))
    assert passes(allowed)
    assert len(allowed.skipped) == 1
    every = (*ALL_SKIPPED, "persistence_mode", "denylist")
    assert not passes(judged(printed(version, ALL_SKIPPED)))
    if version == "4.4.2":  # the denylist of older ones passes
        assert judged(printed(version, ALL_SKIPPED), skips=every).unjudged == ("nothing but skips",)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lower_level_than_asked_for_is_not_enough(version: str) -> None:
    (why,) = judged(printed(version, level=1), level=3).unjudged
    assert re.search("memory, pcie, diagnostic", why)
    assert passes(judged(printed(version, level=1), level=1))


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != "2.3.5"])
def test_a_gpu_that_is_gone_is_noticed(version: str) -> None:
    assert "found 1 GPUs, the node should have 2" in judged(printed(version, gpus=1)).unjudged


@pytest.mark.parametrize("version", VERSIONS)
def test_a_memory_test_without_memory_tested_nothing(version: str) -> None:
    result = judged(printed(version, {"memory": {1: Said("Pass", NOT_ALLOCATED)}}))
    assert not result.findings
    assert "passed without testing" in result.unjudged[0]


@pytest.mark.parametrize(("error", "fit"), [(THERMAL, True), (REMAP, False), (FAULTY, False)])
def test_an_error_that_a_passing_test_recorded_counts(error: Any, fit: bool) -> None:
    result = judged(printed("4.4.2", {"pcie": {1: Said("Pass", error)}}))
    assert len(result.findings) == 1
    assert passes(result) == fit


def test_an_isolating_error_of_a_skipped_test_counts() -> None:
    changes = {"eud": {0: Said("Skip", FAULTY), 1: Said("Skip", PERSISTENCE)}}
    (finding,) = judged(printed("4.4.2", changes), skips=("eud",)).findings
    assert (finding.subject, finding.severity) == ("GPU 0", Severity.ISOLATE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_status_that_contradicts_the_results_is_no_pass(version: str) -> None:
    for code in (226, 217, 1, 137, -9):
        (why,) = judged(printed(version), code).unjudged
        assert f"status {code}" in why
        assert "no test failed" in why
    for text in (printed(version), ""):
        (finding,) = judged(text, 205).findings
        assert (finding.kind, finding.severity) == ("dcgm_isolate", Severity.ISOLATE)


@pytest.mark.parametrize(("stdout", "stderr", "code", "why"), [
    ("", "", 0, "it printed nothing"),
    ("", "docker: Error response from daemon: pull access denied", 125, "pull access denied"),
    ("pyxis: couldn't start container\n", "", 1, "couldn't start container"),
    ("Error: unable to establish a connection to the specified host: localhost\n", "", 235, "unable to establish"),
    ('{"DCGM Diagnostic": {"version": "4.4.2", "runtime_error": "it is paused"}}', "", 226, "it is paused"),
    (printed("4.4.2")[:-10], "", 0, "cannot be read"),
    (printed("4.4.2") * 2, "", 0, "results of 2 nodes"),
    ("", "", 217, "already running"),
    ("", "", 204, "nvvs, was not found"),
    ("", "", None, "did not end within 7 s"),
    (printed("4.4.2"), "", None, "did not end within 7 s"),
])  # fmt: skip
def test_without_results_there_is_no_pass(stdout: str, stderr: str, code: int | None, why: str) -> None:
    """Looking for the word "fail" in them finds nothing in any of these."""
    assert "fail" not in (stdout + stderr).lower()
    result = judged(stdout, code, stderr=stderr)
    assert why in "; ".join(result.unjudged)
    assert not passes(result)


def test_real_outputs() -> None:
    """A GB10 with its persistence mode off."""
    one_gpu = ExpectedTests(level=2, gpus=1)
    for name, skips in (("plugins-allowed", False), ("partial-skip", True)):
        text = sample(f"dcgm/dcgm4_gb10-level2-{name}.json").read_text()
        result = judge("n1", output_of(text, 226), one_gpu)
        assert [finding.severity for finding in result.findings] == [Severity.CONFIGURE]
        assert bool(result.unjudged) == skips


def test_a_table_proves_nothing() -> None:
    """Every dcgmi since version 2.1 prints JSON with `-j`."""
    tables = sample("dcgm/dcgmi-diag-r3_text_2nodes_H100_dcgm3.2_dcgmi-220.out").read_text()
    assert "no results" in judge("n1", output_of(tables, 0), ExpectedTests(level=3, gpus=8)).unjudged[0]


@pytest.fixture
def nodes(tmp_path: Path) -> Callable[..., ProcessFleet]:
    """Nodes whose dcgmi is the stand-in: what each prints, and its other variables; one that prints None has none."""

    def make(prints: Mapping[str, str | None], env: Mapping[str, Mapping[str, str]] | None = None, **site: Any) -> Any:
        envs: dict[str, dict[str, str]] = {}
        for host, text in prints.items():
            programs = tmp_path / host / "bin"
            programs.mkdir(parents=True)
            if text is not None:
                (programs / "dcgmi").symlink_to(STANDIN)
            (tmp_path / host / "out").write_text(text or "")
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            envs[host] = {"PATH": path, "DCGMI_PRINTS": str(tmp_path / host / "out"), **(env or {}).get(host, {})}
        site = {"gpus_per_node": 2, **site}
        return ProcessFleet(site=cpu_site(len(prints), **site), hosts=tuple(prints), folder=tmp_path, env=envs)

    return make


def run(fleet: ProcessFleet, **settings: Any) -> Report:
    return get_check("dcgm").run(fleet, CheckSettings(**settings))


def test_one_bad_node_of_two_is_named(nodes: Callable[..., ProcessFleet]) -> None:
    """The other one passes. What is printed beside the results is kept, and apart from them."""
    bad = printed("4.4.2", {"memory": {1: Said("Fail", FAULTY)}})
    env = {"n1": {"CUDA_VISIBLE_DEVICES": "0"}, "n2": {"DCGMI_STATUS": "205"}}
    fleet = nodes({"n1": printed("3.3.9"), "n2": bad}, env)
    options = {"parameters": ["pcie.is_allowed=true", "memory.l1cache_size_kb_per_sm=192"], "hostengine": "localhost"}
    report = run(fleet, options=options)
    assert [(finding.host, finding.subject) for finding in report.findings] == [("n2", "GPU 1")]
    assert (verdict(report, "n1"), verdict(report, "n2")) == (Verdict.PASS, Verdict.FAIL)
    evidence = report.evidence["nodes"]
    assert (evidence["n1"]["version"], evidence["n1"]["stderr"]) == ("3.3.9", "")
    assert evidence["n1"]["command"] == (
        "dcgmi diag -r 3 -p 'pcie.is_allowed=true;memory.l1cache_size_kb_per_sm=192' --host localhost -j"
    )
    (probe,) = fleet.asked
    assert (probe.gpus, probe.ranks_per_node, probe.deadline_s) == (True, 1, 3600.0)


def test_what_breaks_on_a_node_is_an_error_of_that_node(nodes: Callable[..., ProcessFleet]) -> None:
    modes = {"n1": "empty", "n2": "killed", "n3": "truncated", "n4": "no-engine"}
    whys = {"n1": "printed nothing", "n2": "signal 9", "n3": "cannot be read", "n4": "unable to establish"}
    env = {host: {"DCGMI_MODE": mode} for host, mode in modes.items()}
    report = run(nodes(dict.fromkeys(modes, printed("4.4.2")), env))
    assert not report.findings
    assert {host: why in report.unjudged[host] for host, why in whys.items()} == dict.fromkeys(modes, True)


def test_a_dcgmi_that_hangs_is_ended_and_told(nodes: Callable[..., ProcessFleet], tmp_path: Path) -> None:
    report = run(nodes({"n1": printed("4.4.2")}, {"n1": {"DCGMI_MODE": "hang"}}), deadline_s=20.0)
    assert "did not end within" in report.unjudged["n1"]
    pid = (tmp_path / "n1" / "out.pid").read_text()
    assert not Path("/proc", pid).exists()


def test_a_node_without_dcgm(nodes: Callable[..., ProcessFleet]) -> None:
    """One of two: its ERROR. All of them: a SKIP, but where the system's file asks for it."""
    some = run(nodes({"n1": printed("4.4.2"), "n2": None}))
    assert (verdict(some, "n1"), verdict(some, "n2")) == (Verdict.PASS, Verdict.ERROR)
    assert "dcgmi is not installed" in some.unjudged["n2"]


@pytest.mark.parametrize(("options", "expected"), [({}, Verdict.SKIP), ({"level": 3}, Verdict.ERROR)])
def test_no_node_with_dcgm(nodes: Callable[..., ProcessFleet], options: dict[str, Any], expected: Verdict) -> None:
    report = run(nodes({"n1": None, "n2": None}), options=options)
    assert {verdict(report, host) for host in HOSTS} == {expected}


def test_without_gpus_there_is_nothing_to_test(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("n1",), folder=tmp_path)
    assert "no GPUs" in (run(fleet).skip or "")
    assert not fleet.asked


@pytest.mark.parametrize(
    ("options", "word"),
    [({"level": 5}, "level"), ({"parameters": ["memory"]}, "parameters"), ({"hostengine": "--anything"}, "hostengine")],
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        run(ProcessFleet(site=cpu_site(1), hosts=("n1",), folder=tmp_path), options=options)


CONTAINERS = {
    "docker": "run --rm --init --gpus=all --cap-add=SYS_ADMIN --volume /a:/a --env DCGMI_STATUS --pid=host img",
    "apptainer": "exec --nv --no-home --bind /a:/a --pid=host img",
    "enroot": "start --rw --mount /a:/a --env DCGMI_STATUS --pid=host img",
    "pyxis": "--jobid=7 --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist=n1 --container-image=img "
    "--container-mounts=/a:/a --no-container-mount-home --pid=host",
}


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_dcgmi_in_a_container(nodes: Callable[..., ProcessFleet], tmp_path: Path, runtime: str) -> None:
    """What starts it is a script that takes these words alone and runs the rest; the set-up is done before it."""
    container = {"runtime": runtime, "image": "img", "mounts": ["/a:/a"], "args": ["--pid=host"]}
    setup = ("export DCGMI_MODE=",)
    environment = Environment.model_validate({"container": container, "env": {"DCGMI_STATUS": "0"}, "setup": setup})
    env = {"n1": {"SLURM_JOB_ID": "7", "DCGMI_MODE": "empty", "DCGMI_STATUS": "226"}}
    fleet = nodes({"n1": printed("4.4.2")}, env, environments={"dcgm": environment})
    words = CONTAINERS[runtime]
    script = tmp_path / "n1" / "bin" / ("srun" if runtime == "pyxis" else runtime)
    script.write_text(
        f'#!/bin/bash\n[[ "$*" == "{words} dcgmi diag -r 3 -j" ]] || {{ echo "not $*"; exit 125; }}\n'
        f'shift {len(words.split())}\nexec "$@"\n'
    )
    script.chmod(0o755)
    report = run(fleet)
    assert (report.unjudged, verdict(report, "n1")) == ({}, Verdict.PASS)


def test_a_pyxis_container_needs_slurm(nodes: Callable[..., ProcessFleet], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    environment = Environment.model_validate({"container": {"runtime": "pyxis", "image": "img"}})
    report = run(nodes({"n1": printed("4.4.2")}, environments={"dcgm": environment}))
    assert "not a Slurm job" in report.unjudged["n1"]
