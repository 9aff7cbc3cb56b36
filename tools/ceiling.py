"""The size of the project and its ceilings: `python tools/ceiling.py`. Exit status 1 means that one is too large.

`ceiling.toml` has the ceilings and the rule for raising one.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from typer.main import get_command

from pytest_llmbench import api
from pytest_llmbench.cli.app import app
from pytest_llmbench.plugin.options import OPTIONS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_llmbench"
OUTSIDE_THE_HARNESS = ("engines", "checks", "workloads")


def main() -> int:
    """Print the table; return the exit status."""
    ceilings = tomllib.loads((ROOT / "tools" / "ceiling.toml").read_text(encoding="utf-8"))
    sizes = {"lines": lines(), "surface": surface()}
    above = 0
    for kind, measured in sizes.items():
        if measured.keys() != ceilings[kind].keys():
            raise SystemExit(f"ceiling.toml: [{kind}] must name {', '.join(measured)}")
        for name, size in measured.items():
            too_large = size > ceilings[kind][name]
            above += too_large
            print(f"{name:14} {size:7,} of {ceilings[kind][name]:7,}{'  ABOVE ITS CEILING' if too_large else ''}")
    if above:
        print("make it smaller, or raise its ceiling as tools/ceiling.toml says", file=sys.stderr)
    return int(above > 0)


def lines() -> dict[str, int]:
    """Count the lines of each area, and the words of the documents."""
    parts = {path.name: count_lines(files(path)) for path in PACKAGE.iterdir() if path.name != "suites"}
    package = sum(parts.values())
    outside = {name: parts[name] for name in OUTSIDE_THE_HARNESS}
    docs = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return {
        "package": package,
        "harness": package - sum(outside.values()),
        **outside,
        "tests": count_lines((ROOT / "tests").rglob("*.py")),
        "benchmarks": count_lines(files(ROOT / "benchmarks")),
        "words-of-docs": sum(len(path.read_text(encoding="utf-8").split()) for path in docs),
    }


def surface() -> dict[str, int]:
    """Count what a user sees: options, commands, names, and the packages that come along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "options": sum(bool(option.forms) for option in OPTIONS),
        "ini-keys": sum(option.ini for option in OPTIONS),
        "commands": count_commands(get_command(app)),
        "public-names": len(api.__all__),
        "dependencies": len(project["dependencies"]),
    }


def files(path: Path) -> list[Path]:
    """Return the files below a folder, or the file itself, without what Python compiled."""
    below = path.rglob("*") if path.is_dir() else [path]
    return [each for each in below if each.is_file() and "__pycache__" not in each.parts]


def count_lines(paths: Iterable[Path]) -> int:
    """Count the lines of all these files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def count_commands(command: object) -> int:
    """Count the commands that do something, at any depth."""
    below = getattr(command, "commands", {})
    return sum(map(count_commands, below.values())) if below else 1


if __name__ == "__main__":
    sys.exit(main())
