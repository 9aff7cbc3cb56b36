"""The parts of a login node that sessions need, one after the other."""

import contextlib
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
# The command of each container runtime, with what proves in its output that it works, and where to get it.
_RUNTIMES = {
    "apptainer": ("apptainer", "", "see https://apptainer.org/docs/admin"),
    "docker": ("docker version --format {{.Server.Version}}", r"\d", "apt-get install docker.io, and start its daemon"),
    "enroot": ("enroot", "", "see https://github.com/NVIDIA/enroot"),
    "pyxis": ("srun --help", "--container-image", "see https://github.com/NVIDIA/pyxis"),
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
    slurm, of_slurm = _slurm(needs)
    return [
        *_python(), _site(needs), _torch(needs), *_engines(needs), *of_slurm, _run_folder(needs, slurm),
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


def _judge(part: str, found: str, fault: str, cure: str, *, needed: bool = True) -> Examined:
    """A part of the login node: one that works, or a broken one with its fault and the cure."""
    return Examined(part, "wrong", fault, cure, needed) if fault else Examined(part, "ok", found, needed=needed)


def _python() -> Iterator[Examined]:
    where = "in a virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    yield Examined("Python", "ok", f"{platform.python_version()}, {where}, {sys.executable}")
    fault = ""
    try:
        ENGINES.names()
    except ConfigError as error:
        fault = str(error)
    versions = ", ".join(f"{name} {version(name)}" for name in ("pytest-llmbench", "pytest", "submitit"))
    yield _judge("pytest-llmbench", versions.removeprefix("pytest-llmbench "), fault, "pip install -e CHECKOUT")


def _site(needs: SiteNeeds) -> Examined:
    found = f"system {needs.system.name} ({needs.system.description or 'no description'})"
    return _judge("this folder", found, needs.fault, "llmbench validate systems/*.yaml recipes/*.yaml")


def _torch(needs: SiteNeeds) -> Examined:
    """PyTorch, without importing it: its version file names the GPUs for which it was built."""
    needed = not {"torch", "deepspeed", "megatron_core"}.isdisjoint(needs.engines) and needs.system.python is None
    spec = find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    file = Path(places[0], "version.py") if places else None
    if file is None or not file.is_file():
        return Examined("PyTorch", "missing", "not installed", "pip install 'pytest-llmbench[torch]'", needed)
    facts = runpy.run_path(str(file))
    built = next((f"{name} {facts[key]}" for name, key in (("CUDA", "cuda"), ("ROCm", "hip")) if facts.get(key)), "CPU")
    found = f"{facts.get('__version__')}, for {built}"
    unfit = built == "CPU" and (needs.system.gpus_per_node or gpus_here())
    fault = f"{found}; the nodes have GPUs" if unfit else ""
    return _judge("PyTorch", found, fault, "pip install --force-reinstall torch", needed=needed)


def _engines(needs: SiteNeeds) -> Iterator[Examined]:
    for name, engine in ENGINES.usable().items():
        found = "can run here" if engine.kind == "ranks" else "runs in the environment that the system's file names"
        reason, _, command = (engine.missing() or "").rpartition(": ")
        state: Literal["ok", "missing"] = "missing" if reason or command else "ok"
        yield Examined(f"engine {name}", state, reason or found, command, name in needs.engines)
    for name, reason in ENGINES.broken().items():
        yield Examined(f"engine {name}", "wrong", reason, needed=name in needs.engines)


def _slurm(needs: SiteNeeds) -> tuple[SlurmFacts | None, list[Examined]]:
    """The facts of a Slurm that answers; and Slurm, the partition and the account as parts."""
    part, judge = partial(Examined, needed=needs.slurm), partial(_judge, needed=needs.slurm)
    if missing := missing_commands():
        cure = "apt-get install slurm-client, or load your site's module of Slurm"
        return None, [part("Slurm", "missing", f"not on PATH: {', '.join(missing)}", cure)]
    try:
        slurm = ask_slurm()
    except ClusterError as error:
        return None, [part("Slurm", "wrong", str(error), "scontrol ping")]
    names, own = {partition.name: partition.default for partition in slurm.partitions}, ", ".join(slurm.accounts)
    wanted = needs.partition or next((name for name, default in names.items() if default), "")
    no_partition = f"{wanted or 'no default'}; there are {', '.join(names) or 'none'}"
    account = needs.account or (f"Slurm's default of {own}" if own else "Slurm names none for you")
    foreign = needs.account and slurm.accounts and needs.account not in slurm.accounts
    return slurm, [
        part("Slurm", "ok", f"{slurm.version}, cluster {slurm.cluster}"),
        judge(
            "partition", wanted, no_partition if {*wanted.split(",")} - names.keys() else "",
            "sinfo -s, then set `partition` in the system's file",
        ),
        judge(
            "account", account, f"{account}; yours are {own}" if foreign else "",
            "set `account` in the system's file",
        ),
    ]  # fmt: skip


def _run_folder(needs: SiteNeeds, slurm: SlurmFacts | None) -> Examined:
    folder, cure, fault = needs.run_dir.absolute(), "set llmbench_run_dir in pytest.ini to a folder of your own", ""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    mount = mount_of(there)
    found = f"{folder} on {kind_of(mount)}"
    if not there.is_dir() or not os.access(there, os.W_OK):
        fault = f"{found}: cannot be written"
    else:
        try:
            refuse_shared(folder)
        except ConfigError as error:
            fault = str(error)
    if not fault and needs.slurm and not is_network(mount) and not _is_alone(slurm):
        fault, cure = f"{found}, which nodes do not share", f"{cure.removesuffix('of your own')}that all nodes share"
    return _judge("run folder", found, fault, cure)


def _is_alone(slurm: SlurmFacts | None) -> bool:
    """True if each node of Slurm is this machine."""
    here = platform.node().partition(".")[0]
    hosts = slurm.hosts if slurm is not None else ()
    return bool(hosts) and all(host.startswith("127.") or host.partition(".")[0] == here for host in hosts)


def _runtime(name: str, *, needed: bool) -> Examined:
    command, proof, cure = _RUNTIMES[name]
    program, *words = command.split()
    path = shutil.which(program)
    if path is None:
        return Examined(name, "missing", "not here", cure, needed)
    answer = ""
    if proof:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([path, *words], capture_output=True, text=True, check=False, timeout=_ANSWER_S)
            answer = done.stdout
    fault = "" if re.search(proof, answer) else f"`{command}` does not answer as one that works"
    return _judge(name, path, fault, cure, needed=needed)


def _gpus(needs: SiteNeeds) -> Examined:
    gpus, needed = gpus_here(), bool(needs.system.gpus_per_node) and not needs.slurm
    if gpus:
        return Examined("GPUs", "ok", f"{gpus} on this machine", needed=needed)
    found = "none on this machine" if gpus == 0 else "none of NVIDIA's on this machine"
    return Examined("GPUs", "missing", found, "nvidia-smi", needed=needed)
