"""Which kernel log a node answers with."""

from pathlib import Path

import pytest

from pytest_llmbench.checks.gpu.nodes.facts import kernel_log
from tests.standins.nvidia_smi import BOOT, LOADED, gpu_node

_XID = "[ 99.0] NVRM: Xid (PCI:0000:11:00): 48, pid=1, DBE\n"


def journal(folder: Path, text: str) -> None:
    (folder / "journal").write_text(text, encoding="utf-8")
    (folder / "bin/journalctl").write_text(f"#!/bin/sh\ncat {folder}/journal\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("dmesg", "journalctl", "source", "whole"),
    [
        (BOOT + LOADED, BOOT + LOADED + _XID, "dmesg", True),
        (LOADED, BOOT + LOADED + _XID, "journalctl", True),
        (LOADED, _XID, "dmesg", False),
        (None, _XID, "journalctl", False),
        (None, "", None, False),
    ],
)
def test_the_first_whole_log_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dmesg: str | None, journalctl: str, source: str | None, whole: bool
) -> None:
    monkeypatch.setenv("PATH", gpu_node(tmp_path / "node", log=dmesg)["PATH"])
    journal(tmp_path / "node", journalctl)
    told = kernel_log()
    assert (told.source, told.whole) == (source, whole)
    assert ("dmesg: exit status 1" in " ".join(told.refused)) == (dmesg is None)
    assert all("NVRM" in line for line in told.lines)
