"""Storage checks on real processes and real files, and on facts of nodes that are not here."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Probe, Site, get_check
from pytest_llmbench.checks.storage.nodes import storage as storage_on_nodes
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import AnsweringFleet, ProcessFleet, cpu_site
from tests.support.references import reference

_HOSTS = ("a", "b", "c")
_SITE = Site(system="test", nodes=4, gpus_per_node=8)
_SMALL = {"size": "8 MiB", "streams": 2, "files": 20}
_GOOD: dict[str, Any] = {
    "bytes": 2**30, "write_s": 0.5, "read_s": 0.25, "direct": True, "wrong": [], "files": 1000,
    "create_s": 1.0, "stat_s": 0.5, "unlink_s": 1.0,
}  # fmt: skip


def fleet_of(folder: Path, answers: Sequence[dict[str, Any] | str]) -> AnsweringFleet:
    """Nodes with GPUs; each read the files of the next."""

    def answer(_: Probe, host: str, __: int) -> dict[str, Any] | str:
        told, number = answers[int(host[1:])], int(host[1:])
        return told if isinstance(told, str) or "paths" in told else {**told, "read_from": (number + 1) % len(answers)}

    return AnsweringFleet(_SITE, tuple(f"n{number}" for number in range(len(answers))), answer, folder)


def judged(folder: Path, *answers: dict[str, Any] | str, **settings: Any) -> Report:
    return get_check("storage").run(fleet_of(folder, answers), CheckSettings(**settings))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("storage")
    (folder / "data").mkdir()
    fleet = ProcessFleet(site=cpu_site(3), hosts=_HOSTS, folder=folder / "records")
    options = {**_SMALL, "folder": str(folder / "data")}
    return folder / "data", get_check("storage").run(fleet, CheckSettings(options=options))


def test_three_real_nodes_get_back_what_they_wrote(loaded: tuple[Path, Report]) -> None:
    folder, report = loaded
    assert (report.findings, dict(report.unjudged), report.problem, report.skip) == ((), {}, None, None)
    statistics = get_check("storage").statistics
    assert {(r.host, r.statistic) for r in report.readings} == {(h, s) for h in (None, *_HOSTS) for s in statistics}
    assert all(statistics[r.statistic] == r.unit and r.value > 0 for r in report.readings)
    assert {r.nodes for r in report.readings if r.host is None} == {3}
    assert [told.read_from for told in report.evidence["answers"].values()] == [1, 2, 0]
    assert [told.bytes for told in report.evidence["answers"].values()] == [8 * 2**20] * 3
    assert not list(folder.iterdir())


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(2), hosts=("a", "b"), folder=tmp_path)
    report = get_check("storage").run(fleet, CheckSettings(options={**_SMALL, "size": "1000000000 GiB"}))
    assert set(report.unjudged) == {"a", "b"}
    assert "nothing was written" in report.unjudged["a"]
    assert not list(tmp_path.glob("llmbench-storage-*"))
    assert not report.readings


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    report = get_check("storage").run(fleet, CheckSettings(options={**_SMALL, "folder": str(tmp_path / "file")}))
    assert "NotADirectoryError" in report.unjudged["a"]


def test_totals_are_those_of_the_slowest(tmp_path: Path) -> None:
    report = judged(tmp_path, _GOOD, {**_GOOD, "write_s": 1.0})
    totals = {r.statistic: r.value for r in report.readings if r.host is None}
    assert totals["write"] == pytest.approx(2 * 2**30 / 1e9)
    assert totals["read"] == pytest.approx(8 * 2**30 / 1e9)
    assert (totals["create"], totals["stat"], totals["unlink"]) == (2000, 4000, 2000)


def test_a_slow_node_and_who_read_wrong_bytes_are_named(tmp_path: Path) -> None:
    slow = {**_GOOD, "read_s": 1.0}
    report = judged(tmp_path, _GOOD, _GOOD, slow, _GOOD)
    assert [(f.host, f.kind) for f in report.findings] == [("n2", "outlier")]
    assert "read 1.074 GB/s is 75.0% below" in report.findings[0].message
    assert not judged(tmp_path, _GOOD, slow).findings
    report = judged(tmp_path, _GOOD, {**_GOOD, "wrong": ["data-0: 1 of 9 blocks differ, the first at byte 7"]}, _GOOD)
    (finding,) = report.findings
    assert (finding.host, finding.subject, finding.kind) == ("n1", "file of n2", "wrong_bytes")
    assert finding.severity is Severity.ISOLATE


def test_without_one_node_there_is_no_total(tmp_path: Path) -> None:
    report = judged(tmp_path, _GOOD, "No space left on device", _GOOD)
    assert dict(report.unjudged) == {"n1": "rank 1: No space left on device"}
    assert {r.host for r in report.readings} == {"n0", "n2"}
    assert "no total: some nodes gave no answer" in report.notes


def test_a_reference_bounds_the_total(tmp_path: Path) -> None:
    bound = reference("write", "10 GB/s", nodes=2)
    report = judged(tmp_path, _GOOD, _GOOD, references=(bound,))
    assert [(f.host, f.kind) for f in report.findings] == [(None, "below_reference")]


def staged(folder: Path, *hosts: str, **changes: Any) -> Report:
    """What `data_staging` finds on real nodes that all see this machine's files."""
    options = changes.pop("options", {})
    fleet = ProcessFleet(site=cpu_site(len(hosts), **changes), hosts=hosts, folder=folder / "records")
    return get_check("data_staging").run(fleet, CheckSettings(options=options))


def test_data_that_is_there_passes_and_what_is_not_is_named(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "tokens.bin").write_bytes(b"x" * 100)
    environments = {
        "here": Environment(data=f"{tmp_path}/data", paths={"model": "hub/model"}),
        "away": Environment(data=f"{tmp_path}/gone"),
        "inside": Environment(data="/data", container=Container(runtime="docker", image="i")),
    }
    short = {"path": f"{tmp_path}/data/deep/*.bin", "min_bytes": 101}
    report = staged(tmp_path, "a", "b", environments=environments, options={"paths": [short]})
    assert [(f.host, f.subject, f.kind) for f in report.findings] == [
        ("a", f"{tmp_path}/gone", "data_missing"), ("b", f"{tmp_path}/gone", "data_missing"),
        ("a", short["path"], "data_missing"), ("b", short["path"], "data_missing"),
    ]  # fmt: skip
    assert {finding.severity for finding in report.findings} == {Severity.CONFIGURE}
    assert "is not there" in report.findings[0].message
    assert "1 fewer than the 101" in report.findings[2].message
    assert any("hub/model is not an absolute path" in note for note in report.notes)
    assert any("inside its container" in note for note in report.notes)
    looks = [told.paths[f"{tmp_path}/data"] for told in report.evidence["facts"].values()]
    assert looks[0] == looks[1]
    assert (looks[0].files, looks[0].bytes, looks[0].whole) == (1, 100, True)


def test_where_no_data_is_named_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert "name any data" in (staged(tmp_path, "a").skip or "")


@pytest.mark.parametrize(
    ("digests", "odd", "unjudged"), [("xxy", ["n2"], []), ("xy", [], ["n0", "n1"]), ("xx", [], [])]
)
def test_data_that_differs_between_nodes(tmp_path: Path, digests: str, odd: list[str], unjudged: list[str]) -> None:
    answers = [
        {"paths": {"/d": {"wrong": "", "files": 1, "bytes": 9, "whole": False, "digest": digest}}} for digest in digests
    ]
    fleet = fleet_of(tmp_path, answers)
    report = get_check("data_staging").run(fleet, CheckSettings(options={"paths": [{"path": "/d"}]}))
    assert [f.host for f in report.findings] == odd
    assert list(report.unjudged) == unjudged
    assert report.notes == ("/d: the first 2000 files were compared, there are more",)


def test_a_folder_is_made_though_a_rank_removes_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times another rank removes the empty parent right before the folder is made in it."""
    own, make = tmp_path / "parent" / "node-00000", os.mkdir
    taken: list[Path] = []

    def make_late(path: Path, mode: int = 0o777) -> None:
        if path == own and own.parent.exists() and len(taken) < 3:
            own.parent.rmdir()
            taken.append(own.parent)
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", make_late)
    storage_on_nodes._make_folder(own)
    assert own.is_dir()
    assert len(taken) == 3
