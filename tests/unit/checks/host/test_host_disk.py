"""Disks: real folders that are fine, that nobody can write to, and that are not there."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.checks.host.folders import DiskOptions, check_room
from pytest_llmbench.checks.host.nodes.folders import Room
from tests.support.fleet import ProcessFleet, cpu_site

NOTHING_ASKED = {"free_gib": 0, "free_inodes_percent": 0}


def test_folders_that_cannot_be_used_are_found(tmp_path: Path) -> None:
    env = {"b": {"TMPDIR": "/proc"}, "c": {"TMPDIR": str(tmp_path / "nothing")}}
    fleet = ProcessFleet(site=cpu_site(3), hosts=("a", "b", "c"), folder=tmp_path, env=env)
    report = get_check("disk").run(fleet, CheckSettings(options={**NOTHING_ASKED, "scratch": str(tmp_path)}))
    assert [(each.host, each.kind, each.subject) for each in report.findings] == [
        ("b", "not_writable", "/proc"),
        ("c", "not_writable", str(tmp_path / "nothing")),
    ]
    assert "No such file or directory" in report.findings[1].message
    assert {reading.subject for reading in report.readings if reading.host == "a"} == {"temporary", "shared", "scratch"}


def test_too_little_room_is_found(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    report = get_check("disk").run(fleet, CheckSettings(options={"free_gib": 2**40, "free_inodes_percent": 0}))
    assert [finding.kind for finding in report.findings] == ["disk_full", "disk_full"]
    assert "needs 1.09951e+12 GiB" in report.findings[0].message


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"free_inodes": 4}, ["no_inodes"]),
        ({"inodes": 0, "free_inodes": 0}, []),
        ({"free_bytes": 2**30 - 1}, ["disk_full"]),
        (
            {"free_bytes": 0, "free_inodes": 0, "why": "Read-only file system"},
            ["not_writable", "disk_full", "no_inodes"],
        ),
    ],
)
def test_what_is_wrong_with_a_folder(changes: dict[str, Any], kinds: list[str]) -> None:
    facts = {"path": "/x", "why": None, "bytes": 2**40, "free_bytes": 2**30, "inodes": 100, "free_inodes": 5}
    room = Room(**facts | changes)
    assert [kind for kind, _, _ in check_room("temporary", room, DiskOptions())] == kinds
