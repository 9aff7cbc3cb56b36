"""The files of a new site."""

import datetime as dt
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pytest_llmbench.cli.site.machine import SiteMachine, probe_machine
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.engines.base import get_engine

# Files with a section for pytest, which would lose it to a `pytest.ini` beside them.
_OTHERS = {"pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}
_INI = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_CI = {"github": ".github/workflows/llmbench.yml", "gitlab": ".gitlab-ci.yml"}


def write_site(folder: Path, ci: str, engine: str) -> list[dict[str, Any]]:
    """Write what is not there yet, and tell what became of each file.

    Raises:
        ConfigError: there is no such engine.
        OSError: the folder cannot be written.
    """
    get_engine(engine)
    machine = probe_machine()
    rows = []
    for name, text in _texts(machine, ci, engine):
        path = folder / name
        row = {"file": name, "fate": "written", "note": None}
        owner = _owner_of_ini(folder) if name == "pytest.ini" else None
        if owner is not None:
            lines = "; ".join(line for line in text.splitlines() if "=" in line)
            row |= {"fate": "left out", "note": f"{owner} configures pytest: add there {lines}"}
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                row |= {"fate": "kept", "note": "it was there before"}
        rows.append(row)
    return rows


def _owner_of_ini(folder: Path) -> str | None:
    """The file that pytest takes its configuration from, if it is not `pytest.ini` itself."""
    for name in _INI:
        if (folder / name).exists():
            return None if name == "pytest.ini" else name
    for name, section in _OTHERS.items():
        path = folder / name
        if path.exists() and section in path.read_text(encoding="utf-8", errors="replace"):
            return name
    return None


def _texts(machine: SiteMachine, ci: str, engine: str) -> Iterator[tuple[str, str]]:
    """Each file of a site: name, text."""
    facts = {
        "system": machine.name,
        "engine": engine,
        "gpus": str(machine.gpus),
        "precision": "bf16" if machine.gpus else "fp32",
        "batch": str(8 * max(1, machine.gpus)),
        "today": dt.date.today().isoformat(),  # noqa: DTZ011 - the day of whoever writes
        "python": sys.executable,
        "nodes": " --nodes 2" if machine.keys["cluster"] == "slurm" else "",
    }
    yield "pytest.ini", _filled("pytest_ini.txt", facts)
    yield f"systems/{machine.name}.yaml", f"# yaml-language-server: $schema=../schemas/system.json\n{machine.text}"
    yield "recipes/first.yaml", _filled("first.txt", facts)
    yield "test_training.py", _filled("test_training.txt", facts)
    yield "test_nodes.py", _filled("test_nodes.txt", facts)
    for kind in ("recipe", "system"):
        yield f"schemas/{kind}.json", (shipped("schemas") / f"{kind}.json").read_text(encoding="utf-8")
    if ci in _CI:
        yield _CI[ci], _filled(f"{ci}.txt", facts)
    yield ".gitignore", "reports/\nreport.xml\n__pycache__/\n.pytest_cache/\n"
    yield "README.md", _filled("readme.txt", facts)


def _filled(name: str, facts: dict[str, str]) -> str:
    """A template with its names (`@name@` in it) filled in."""
    text = (files("pytest_llmbench.cli.site") / "templates" / name).read_text(encoding="utf-8")
    return _Named(text).substitute(facts)


class _Named(Template):
    """Its names are between at signs: dollars belong to shells and to CI."""

    pattern = r"@(?:(?P<named>[a-z]+)@|(?P<braced>(?!))|(?P<escaped>(?!))|(?P<invalid>(?!)))"  # type: ignore[assignment]
