"""The files of a new site; its system file comes from the facts of its login node."""

import datetime as dt
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pytest_llmbench.cli.site.probe import SlurmFacts, ask_slurm
from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM, SYSTEMS, Gpu, load_system
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.engines.base import get_engine

_RESERVED = {LOCAL, SLURM, ELSEWHERE}
# Files with a section for pytest, which would lose it to a `pytest.ini` beside them.
_OTHERS = {"pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}
_INI = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_CI = {"github": ".github/workflows/llmbench.yml", "gitlab": ".gitlab-ci.yml"}


class SiteMachine(NamedTuple):
    """The system of a new site: the keys of its file, and notes on decisions that are left to its author."""

    keys: Mapping[str, Any]
    notes: Sequence[str]


def write_site(folder: Path, ci: str, engine: str) -> list[dict[str, Any]]:
    """Write the missing files of a site, and return a row with the fate of each file.

    Raises ConfigError if the engine is unknown, and OSError if writing a file fails.
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
        elif path.exists():
            row |= {"fate": "kept", "note": "it was there before"}
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        rows.append(row)
    return rows


def _owner_of_ini(folder: Path) -> str | None:
    """The file with pytest's configuration, if it is another than `pytest.ini`."""
    for name in _INI:
        if (folder / name).exists():
            return None if name == "pytest.ini" else name
    for name, section in _OTHERS.items():
        path = folder / name
        if path.exists() and section in path.read_text(encoding="utf-8", errors="replace"):
            return name
    return None


def _texts(machine: SiteMachine, ci: str, engine: str) -> Iterator[tuple[str, str]]:
    system, gpus = str(machine.keys["name"]), int(machine.keys.get("gpus_per_node") or 0)
    facts = {
        "system": system,
        "engine": engine,
        "gpus": str(gpus),
        "precision": "bf16" if gpus else "fp32",
        "batch": str(8 * max(1, gpus)),
        "today": dt.date.today().isoformat(),  # noqa: DTZ011 - the day of its author
        "python": sys.executable,
        "nodes": " --nodes 2" if machine.keys["cluster"] == "slurm" else "",
    }
    notes = "".join(f"# {note}\n" for note in machine.notes)
    keys = yaml.safe_dump(dict(machine.keys), sort_keys=False, allow_unicode=True)
    yield "pytest.ini", _fill("pytest_ini.txt", facts)
    yield f"systems/{system}.yaml", f"# yaml-language-server: $schema=../schemas/system.json\n{notes}{keys}"
    yield "recipes/first.yaml", _fill("first.txt", facts)
    yield "test_training.py", _fill("test_training.txt", facts)
    yield "test_nodes.py", _fill("test_nodes.txt", facts)
    for kind in ("recipe", "system"):
        yield f"schemas/{kind}.json", (shipped("schemas") / f"{kind}.json").read_text(encoding="utf-8")
    if ci in _CI:
        yield _CI[ci], _fill(f"{ci}.txt", facts)
    yield ".gitignore", "reports/\nreport.xml\nllmbench-history.db*\n__pycache__/\n.pytest_cache/\n"
    yield "README.md", _fill("readme.txt", facts)


def _fill(name: str, facts: dict[str, str]) -> str:
    """Fill in the names (`@name@`) of a template."""
    text = (files("pytest_llmbench.cli.site") / "templates" / name).read_text(encoding="utf-8")
    return re.sub(r"@([a-z]+)@", lambda match: facts[match[1]], text)


def probe_machine() -> SiteMachine:
    """Describe the cluster of this login node, or, without an answer of Slurm, this machine."""
    known = SYSTEMS.usable().values()
    here = load_system(LOCAL, known)
    names = {path.stem.lower() for folder in known for path in folder.glob("*.yaml")} | _RESERVED
    try:
        slurm = ask_slurm()
    except ClusterError:
        note = "No Slurm answered `llmbench init`, so this describes the machine on which it ran."
        keys: dict[str, Any] = {"name": _free(platform.node() or "site", names), "description": here.description}
        keys |= {"cluster": "local", "gpus_per_node": here.gpus_per_node}
        keys |= {} if here.gpus_per_node else {"cpu_ranks_per_node": here.cpu_ranks_per_node}
        return _with_gpu(keys, [note], here.gpu)
    return _describe_slurm(slurm, here.gpu, names)


def _describe_slurm(slurm: SlurmFacts, seen: Gpu | None, names: set[str]) -> SiteMachine:
    best = slurm.best
    keys: dict[str, Any] = {"name": _free(slurm.cluster or "cluster", names), "cluster": "slurm"}
    notes = ["`llmbench init` wrote this from sinfo, scontrol, sacctmgr and nvidia-smi. Correct it where it is wrong."]
    if best is not None:
        keys["description"] = f"{best.nodes} nodes in partition {best.name}, Slurm {slurm.version}"
        keys |= {} if best.gpus is None else {"gpus_per_node": best.gpus}
        keys["partition"] = best.name
        if len(slurm.partitions) > 1:
            notes.append(f"Partitions: {', '.join(partition.name for partition in slurm.partitions)}.")
        if best.gpus is None:
            notes.append("The nodes of this partition differ in their GPUs: add gpus_per_node, or a constraint.")
    if len(slurm.accounts) == 1:
        keys["account"] = slurm.accounts[0]
    elif slurm.accounts:
        notes.append(f"You have several accounts: add account, one of {', '.join(slurm.accounts)}.")
    gres = f" Slurm calls it {best.gres}." if best is not None and best.gres else ""
    return _with_gpu(keys, notes, seen if keys.get("gpus_per_node") != 0 else None, gres)


def _with_gpu(keys: dict[str, Any], notes: Sequence[str], gpu: Gpu | None, gres: str = "") -> SiteMachine:
    """Add the GPU that nvidia-smi shows here, or a note that it is missing."""
    if gpu is not None:
        return SiteMachine({**keys, "gpu": gpu.model_dump(mode="json")}, notes)
    note = f"Add gpu: model as nvidia-smi names it, memory_gib, peak_tflops and their source; `mfu` needs it.{gres}"
    return SiteMachine(keys, notes if keys.get("gpus_per_node") == 0 else [*notes, note])


def _free(name: str, taken: set[str]) -> str:
    legal = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:80] or "site"
    return f"{legal}_site" if legal.lower() in taken else legal
