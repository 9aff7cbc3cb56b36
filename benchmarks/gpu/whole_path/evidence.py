"""What a stage of the whole path leaves: counts of tests, the ways that NCCL took, one archive."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

# As in the line: Channel 00/02 : 1[0] -> 0[0] [receive] via NET/Socket/0
_WAY = re.compile(r" via ([A-Z0-9]+(?:/[A-Za-z]+)?)")
_LARGEST = 2**20
# Attributes of a suite in JUnit's XML, and our words for them.
_ENDS = {"failures": "failed", "errors": "errors", "skipped": "skipped"}


def counted(junit: Path) -> list[str]:
    """How many tests there were, and how they ended; nothing where pytest wrote no XML."""
    if not junit.is_file():
        return []
    suites = list(ET.parse(junit).getroot().iter("testsuite"))
    total = {name: sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", *_ENDS)}
    passed = total["tests"] - sum(total[name] for name in _ENDS)
    ends = [f"{passed} passed", *(f"{total[name]} {word}" for name, word in _ENDS.items() if total[name])]
    return [f"{total['tests']} tests: {', '.join(ends)}"]


def ways_of_nccl(folder: Path) -> list[str]:
    """Which ways between GPUs NCCL says that it took, with the number of channels; nothing without GPUs."""
    ways: Counter[str] = Counter()
    for path in folder.glob("*.txt"):
        ways.update(_WAY.findall(path.read_text(encoding="utf-8", errors="replace")))
    return [f"NCCL went via {', '.join(f'{way} ({count})' for way, count in ways.most_common())}"] if ways else []


def keep_logs(slurm: Path, folder: Path) -> None:
    """Copy configuration and logs of Slurm; they are gone when it is taken down."""
    for name in ("etc", "log"):
        shutil.copytree(slurm / name, folder / name, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def pack(folder: Path, archive: Path, largest: int = _LARGEST) -> None:
    """Pack a stage's folder, without pickles and what is larger, by default than 1 MiB."""

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        large = member.isfile() and member.size > largest
        return None if large or not (member.isfile() or member.isdir()) or member.name.endswith(".pkl") else member

    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name, filter=wanted)
