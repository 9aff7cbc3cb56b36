"""The parts of a login node that sessions need, one after the other."""

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest

from pytest_llmbench.checks.host.base import is_network, kind_of
from pytest_llmbench.checks.host.nodes.files import mount_of
from pytest_llmbench.cli.site.probe import SlurmFacts, ask_slurm, missing_commands
from pytest_llmbench.cli.site.reading import call_in_site
from pytest_llmbench.cluster.system import LOCAL, SYSTEMS, System, gpus_here, load_system
from pytest_llmbench.core.errors import ClusterError, ConfigError, unknown
from pytest_llmbench.core.files import refuse_shared
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.options import INI_KEYS, read_options

_ANSWER_S = 10.0
_RUNTIMES = {
    "apptainer": ("apptainer", "see https://apptainer.org/docs/admin"),
    "docker": ("docker", "apt-get install docker.io"),
    "enroot": ("enroot", "see https://github.com/NVIDIA/enroot"),
    "pyxis": ("srun", "see https://github.com/NVIDIA/pyxis"),
}


@dataclass(frozen=True, slots=True)
class Examined:
    """One part of this machine: present, missing, or in need of the repair by `command`."""

    part: str
    state: Literal["ok", "missing", "wrong"]
    found: str  # version or place of the part, or the fault
    command: str = ""
    needed: bool = True  # True if the tests of this folder need it


def table_of(parts: Sequence[Examined]) -> list[tuple[str, str, str]]:
    """Rows for people: each needed part with the command that repairs it, then the names of the others."""
    rows: list[tuple[str, str, str]] = []
    for part in parts:
        if part.needed:
            rows.append((part.state, part.part, part.found))
            rows += [("repair", part.part, part.command)] if part.command else []
    for word, good in (("also there", True), ("not there", False)):
        names = [part.part for part in parts if not part.needed and (part.state == "ok") == good]
        rows += [("unneeded", word, f"{', '.join(names)} (--json has each)")] if names else []
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteNeeds:
    """Needs of the tests of a folder."""

    system: System
    slurm: bool  # True if runs are Slurm jobs
    run_dir: Path
    # Those of the jobs; None for Slurm's own defaults
    partition: str | None = None
    account: str | None = None
    engines: Collection[str] = ("torch",)  # names of the engines of its own recipes; `torch` without recipes
    fault: str = ""  # the fault of its ini file, or of a file that this names


def examine() -> list[Examined]:
    """Look at each part, by commands that answer at once."""
    try:
        needs = call_in_site(_needs)
    except ConfigError as error:
        system = load_system(LOCAL, SYSTEMS.usable().values())
        needs = SiteNeeds(system=system, slurm=not missing_commands(), run_dir=Path("reports"), fault=str(error))
    runtimes = {env.container.runtime for env in needs.system.environments.values() if env.container is not None}
    return [
        *_python(), _site(needs), _torch(needs), *_engines(needs), *_slurm(needs), _run_folder(needs),
        *(_runtime(name, needed=name in runtimes) for name in _RUNTIMES), _gpus(needs),
    ]  # fmt: skip


def _needs(config: pytest.Config) -> SiteNeeds:
    # pytest only warns of a misspelt key, and its parsers of the several formats keep the keys to themselves.
    text = config.inipath.read_text(encoding="utf-8") if config.inipath is not None else ""
    for key in re.findall(r"^\s*(llmbench_\w+)\s*=", text, re.MULTILINE):
        if key not in INI_KEYS:
            raise ConfigError(unknown("ini option", key, INI_KEYS))
    bench = Bench(config, read_options(config))
    settings = bench.settings
    own = load_recipes(list(bench.options.recipes)).values()
    return SiteNeeds(
        system=settings.system,
        slurm=settings.cluster == "slurm",
        partition=settings.slurm.get("partition") or settings.system.partition,
        account=settings.slurm.get("account") or settings.system.account,
        run_dir=bench.options.run_dir,
        engines={recipe.engine for recipe in own} or ("torch",),
    )


def _python() -> Iterator[Examined]:
    where = "in a virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    yield Examined("Python", "ok", f"{platform.python_version()}, {where}, {sys.executable}")
    found = ", ".join(f"{name} {version(name)}" for name in ("pytest-llmbench", "pytest", "submitit"))
    try:
        ENGINES.names()
    except ConfigError as error:
        yield Examined("pytest-llmbench", "wrong", str(error), "pip install -e CHECKOUT")
    else:
        yield Examined("pytest-llmbench", "ok", found.removeprefix("pytest-llmbench "))


def _site(needs: SiteNeeds) -> Examined:
    if needs.fault:
        return Examined("this folder", "wrong", needs.fault, "llmbench validate systems/*.yaml recipes/*.yaml")
    return Examined("this folder", "ok", f"system {needs.system.name} ({needs.system.description or 'no description'})")


def _torch(needs: SiteNeeds) -> Examined:
    """PyTorch, without importing it: its version file names the GPUs for which it was built."""
    users = {name for name in needs.engines if name in {"torch", "deepspeed", "megatron_core"}}
    needed = bool(users) and needs.system.python is None
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    file = Path(places[0], "version.py") if places else None
    if file is None or not file.is_file():
        return Examined("PyTorch", "missing", "not installed", "pip install 'pytest-llmbench[torch]'", needed=needed)
    facts = runpy.run_path(str(file))
    built = next((f"{name} {facts[key]}" for name, key in (("CUDA", "cuda"), ("ROCm", "hip")) if facts.get(key)), "CPU")
    found = f"{facts.get('__version__')}, for {built}"
    if built == "CPU" and (needs.system.gpus_per_node or gpus_here()):
        cure = "pip install --force-reinstall torch"
        return Examined("PyTorch", "wrong", f"{found}; the nodes have GPUs", cure, needed=needed)
    return Examined("PyTorch", "ok", found, needed=needed)


def _engines(needs: SiteNeeds) -> Iterator[Examined]:
    for name, engine in ENGINES.usable().items():
        part, needed = f"engine {name}", name in needs.engines
        missing = engine.missing()
        if missing is None:
            found = "can run here" if engine.kind == "ranks" else "runs in the environment that the system's file names"
            yield Examined(part, "ok", found, needed=needed)
        else:
            reason, _, command = missing.rpartition(": ")
            yield Examined(part, "missing", reason, command, needed=needed)
    for name, reason in ENGINES.broken().items():
        yield Examined(f"engine {name}", "wrong", reason, needed=name in needs.engines)


def _slurm(needs: SiteNeeds) -> Iterator[Examined]:
    if missing := missing_commands():
        cure = "apt-get install slurm-client, or load your site's module of Slurm"
        yield Examined("Slurm", "missing", f"not on PATH: {', '.join(missing)}", cure, needed=needs.slurm)
        return
    try:
        slurm = ask_slurm()
    except ClusterError as error:
        yield Examined("Slurm", "wrong", str(error), "scontrol ping", needed=needs.slurm)
        return
    yield Examined("Slurm", "ok", f"{slurm.version}, cluster {slurm.cluster}", needed=needs.slurm)
    yield _partition(needs, slurm)
    accounts = ", ".join(slurm.accounts)
    if needs.account and slurm.accounts and needs.account not in slurm.accounts:
        found = f"{needs.account}; yours are {accounts}"
        yield Examined("account", "wrong", found, "set `account` in the system's file", needed=needs.slurm)
    else:
        found = needs.account or (f"Slurm's default of {accounts}" if accounts else "Slurm names none for you")
        yield Examined("account", "ok", found, needed=needs.slurm)


def _partition(needs: SiteNeeds, slurm: SlurmFacts) -> Examined:
    names = [partition.name for partition in slurm.partitions]
    default = next((partition.name for partition in slurm.partitions if partition.default), None)
    wanted = needs.partition or default
    if wanted is None or set(wanted.split(",")) - set(names):
        found = f"{wanted or 'no default'}; there are {', '.join(names) or 'none'}"
        cure = "sinfo -s, then set `partition` in the system's file"
        return Examined("partition", "wrong", found, cure, needed=needs.slurm)
    return Examined("partition", "ok", wanted, needed=needs.slurm)


def _run_folder(needs: SiteNeeds) -> Examined:
    part, folder = "run folder", needs.run_dir.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    mount = mount_of(there)
    found, own = f"{folder} on {kind_of(mount)}", "set llmbench_run_dir in pytest.ini to a folder of your own"
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Examined(part, "wrong", f"{found}: cannot be written", own)
    try:
        refuse_shared(folder)
    except ConfigError as error:
        return Examined(part, "wrong", str(error), own)
    if needs.slurm and not is_network(mount) and not _is_alone():
        shared = "set llmbench_run_dir in pytest.ini to a folder that all nodes share"
        return Examined(part, "wrong", f"{found}, which nodes do not share", shared)
    return Examined(part, "ok", found)


def _is_alone() -> bool:
    """True if each node of Slurm is this machine."""
    try:
        hosts = ask_slurm().hosts
    except ClusterError:
        return False
    here = platform.node().partition(".")[0]
    return bool(hosts) and all(host.startswith("127.") or host.partition(".")[0] == here for host in hosts)


def _runtime(name: str, *, needed: bool) -> Examined:
    """A container runtime: pyxis is a part of srun, and Docker needs its daemon."""
    command, cure = _RUNTIMES[name]
    path = shutil.which(command)
    asked = {"pyxis": [command, "--help"], "docker": [command, "version", "--format", "{{.Server.Version}}"]}.get(name)
    answer = ""
    if path is not None and asked is not None:
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=_ANSWER_S).stdout
        except subprocess.TimeoutExpired:
            found = f"{path} does not answer within {_ANSWER_S:.0f} s"
            return Examined(name, "wrong", found, shlex.join(asked), needed=needed)
        except OSError:
            answer = ""
    if path is None or (name == "pyxis" and "--container-image" not in answer):
        return Examined(name, "missing", "not here", cure, needed=needed)
    if name == "docker" and not answer.strip():
        return Examined(name, "wrong", f"{path}, and no Docker daemon answers it", "docker info", needed=needed)
    return Examined(name, "ok", path, needed=needed)


def _gpus(needs: SiteNeeds) -> Examined:
    gpus, needed = gpus_here(), bool(needs.system.gpus_per_node) and not needs.slurm
    if gpus:
        return Examined("GPUs", "ok", f"{gpus} on this machine", needed=needed)
    found = "none on this machine" if gpus == 0 else "none of NVIDIA's on this machine"
    return Examined("GPUs", "missing", found, "nvidia-smi", needed=needed)
