"""Software: who differs is named, with both versions and the nodes that agree."""

from pathlib import Path

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.software import find_unfit_for_gpus, find_unlike
from pytest_llmbench.core.record.health import Severity
from tests.support.fleet import ProcessFleet, cpu_site


def with_program(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which a program is another one."""
    path = folder / "bin" / name
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    """Three nodes with one enroot, and one with another."""
    folder = tmp_path_factory.mktemp("software")
    usual = with_program(folder / "usual", "enroot", "echo 3.5.0")
    other = with_program(folder / "other", "enroot", "echo 3.4.1")
    env = dict.fromkeys("abd", usual) | {"c": other}
    return ProcessFleet(site=cpu_site(4), hosts=("a", "b", "c", "d"), folder=folder, env=env)


def test_the_node_with_another_version_is_found(fleet: ProcessFleet) -> None:
    report = get_check("software").run(fleet, CheckSettings())
    (finding,) = report.findings
    assert (finding.host, finding.subject, finding.severity) == ("c", "enroot", Severity.CONFIGURE)
    assert finding.message == "3.4.1; 3.5.0 on a, b, d"
    told = report.evidence["software"]["a"]
    assert {"kernel", "python", "enroot"} <= told.keys()


def test_software_that_one_node_lacks_is_found_and_what_may_differ_is_ignored(fleet: ProcessFleet) -> None:
    (finding,) = find_unlike({"a": {"ofed": "5.8"}, "b": {}, "c": {"ofed": "5.8"}}, ())
    assert (finding.host, finding.message) == ("b", "none; 5.8 on a, c")
    assert not get_check("software").run(fleet, CheckSettings(options={"ignore": ["enroot"]})).findings


@pytest.mark.parametrize(("torch", "cuda", "driver", "severity", "words"), [
    ("2.6.0+cu124", "12.4", "12.4", None, ""),
    ("2.6.0+cu118", "11.8", "12.8", None, ""),
    ("2.6.0+cu124", "12.4", "11.8", Severity.CONFIGURE, "built for CUDA 12.4, and the driver runs 11.8 at most"),
    ("2.6.0+cu128", "12.8", "12.2", Severity.MONITOR, "newer than the driver's 12.2"),
    ("2.6.0+cu1210", "12.10", "12.9", Severity.MONITOR, "newer than the driver's 12.9"),
    ("2.6.0+cpu", None, "12.2", Severity.CONFIGURE, "PyTorch 2.6.0+cpu is not built for CUDA"),
    (None, None, "12.2", None, ""),
    ("2.6.0+cu124", "12.4", None, Severity.CONFIGURE, "libcuda.so.1 is missing"),
])  # fmt: skip
def test_a_pytorch_that_the_driver_cannot_run(
    torch: str | None, cuda: str | None, driver: str | None, severity: Severity | None, words: str
) -> None:
    """A newer major version never runs; a newer minor one mostly does."""
    versions = {"torch": torch, "cuda": cuda, "driver's cuda": driver}
    found = [*find_unfit_for_gpus("n", {name: version for name, version in versions.items() if version is not None})]
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(words in finding.message for finding in found)
