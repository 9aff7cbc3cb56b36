"""The parts of a login node that sessions need, one after the other."""

import os
import platform
import runpy
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_llmbench.checks.host.base import is_network, kind_of
from pytest_llmbench.checks.host.nodes.files import mount_of
from pytest_llmbench.cli.site.probe import SlurmFacts, ask_slurm, missing_commands
from pytest_llmbench.cli.site.reading import in_site
from pytest_llmbench.cluster.system import LOCAL, SYSTEMS, System, gpus_here, load_system
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.files import refuse_shared
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import Bench

_ANSWER_S = 10.0
_RUNTIMES = {
    "docker": ("docker", "apt-get install docker.io"),
    "enroot": ("enroot", "see https://github.com/NVIDIA/enroot"),
    "pyxis": ("srun", "see https://github.com/NVIDIA/pyxis"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """One part of this machine.

    Attributes:
        part: its name.
        state: `missing` where it is not there, `wrong` where it cannot be used as it is.
        found: the part that is there, or the reason against its use.
        command: gets or repairs it; empty where it is fine.
        needed: whether the tests of this folder need it.
    """

    part: str
    state: Literal["ok", "missing", "wrong"]
    found: str
    command: str = ""
    needed: bool = True

    @property
    def plain(self) -> dict[str, Any]:
        """As a row."""
        return asdict(self)

    @property
    def lines(self) -> Iterator[str]:
        """For people."""
        aside = " (nothing in this folder needs it)" if self.state != "ok" and not self.needed else ""
        yield f"{self.state:8} {self.part:22} {' '.join(self.found.split())}{aside}"
        if self.command:
            yield f"{'':8} {'':22} -> {self.command}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteNeeds:
    """Needs of the tests of a folder.

    Attributes:
        system: the system of its ini file, or the one that is here.
        slurm: whether runs are Slurm jobs.
        partition, account: for them; None for Slurm's own defaults.
        run_dir: the folder of sessions.
        engines: names of the engines of its own recipes; `torch` where it has none.
        fault: the reason why its ini file, or a file that it names, cannot be used.
    """

    system: System
    slurm: bool
    run_dir: Path
    partition: str | None = None
    account: str | None = None
    engines: Collection[str] = field(default_factory=lambda: {"torch"})
    fault: str = ""


def examine() -> list[Examined]:
    """Look at each part. Nothing is started but commands that answer at once."""
    try:
        needs = in_site(_needs)
    except ConfigError as error:
        system = load_system(LOCAL, SYSTEMS.usable().values())
        needs = SiteNeeds(system=system, slurm=not missing_commands(), run_dir=Path("reports"), fault=str(error))
    return [*_python(), *_site(needs), *_torch(needs), *_engines(needs), *_slurm(needs), *_folder(needs), *_rest(needs)]


def _needs(config: pytest.Config) -> SiteNeeds:
    options.check_ini(config)
    bench = Bench(config, options.read_options(config))
    settings = bench.settings
    own = load_recipes(list(bench.options.recipes)).values()
    return SiteNeeds(
        system=settings.system,
        slurm=settings.cluster == "slurm",
        partition=settings.slurm.get("partition") or settings.system.partition,
        account=settings.slurm.get("account") or settings.system.account,
        run_dir=bench.run_dir,
        engines={recipe.engine for recipe in own} or {"torch"},
    )


def _python() -> Iterator[Examined]:
    where = "in a virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    yield Examined(part="Python", state="ok", found=f"{platform.python_version()}, {where}, {sys.executable}")
    try:
        ENGINES.names()
    except ConfigError as error:
        yield Examined(part="pytest-llmbench", state="wrong", found=str(error), command="pip install -e CHECKOUT")
    else:
        yield Examined(part="pytest-llmbench", state="ok", found=_version("pytest-llmbench") or "without metadata")
    for part in ("pytest", "submitit"):
        found = _version(part)
        command = "" if found else f"pip install {part}"
        yield Examined(part=part, state="ok" if found else "missing", found=found or "", command=command)


def _site(needs: SiteNeeds) -> Iterator[Examined]:
    if needs.fault:
        command = "llmbench validate systems/*.yaml recipes/*.yaml"
        yield Examined(part="this folder", state="wrong", found=needs.fault, command=command)
    else:
        what = f"system {needs.system.name} ({needs.system.description or 'no description'})"
        yield Examined(part="this folder", state="ok", found=what)


def _torch(needs: SiteNeeds) -> Iterator[Examined]:
    """PyTorch, without importing it: its version says for which GPUs it was built."""
    users = {name for name in needs.engines if name in {"torch", "deepspeed", "megatron_core"}}
    needed = bool(users) and needs.system.python is None
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    file = Path(places[0], "version.py") if places else None
    if file is None or not file.is_file():
        command = "pip install 'pytest-llmbench[torch]'"
        yield Examined(part="PyTorch", state="missing", found="not installed", command=command, needed=needed)
        return
    told = runpy.run_path(str(file))
    built = next((f"{name} {told[key]}" for name, key in (("CUDA", "cuda"), ("ROCm", "hip")) if told.get(key)), "CPU")
    gpus = bool(needs.system.gpus_per_node or gpus_here())
    found = f"{told.get('__version__')}, for {built}"
    if gpus and built == "CPU":
        found += "; the nodes have GPUs"
        command = "pip install --force-reinstall torch"
        yield Examined(part="PyTorch", state="wrong", found=found, command=command, needed=needed)
    else:
        yield Examined(part="PyTorch", state="ok", found=found, needed=needed)


def _engines(needs: SiteNeeds) -> Iterator[Examined]:
    for name, engine in ENGINES.usable().items():
        part, needed = f"engine {name}", name in needs.engines
        missing = engine.missing()
        if missing is None:
            found = "can run here" if engine.kind == "ranks" else "runs in the environment that the system's file names"
            yield Examined(part=part, state="ok", found=found, needed=needed)
        else:
            why, _, command = missing.rpartition(": ")
            yield Examined(part=part, state="missing", found=why, command=command, needed=needed)
    for name, why in ENGINES.broken().items():
        yield Examined(part=f"engine {name}", state="wrong", found=why, needed=name in needs.engines)


def _slurm(needs: SiteNeeds) -> Iterator[Examined]:
    missing = missing_commands()
    if missing:
        found = f"not on PATH: {', '.join(missing)}"
        command = "apt-get install slurm-client, or load your site's module of Slurm"
        yield Examined(part="Slurm", state="missing", found=found, command=command, needed=needs.slurm)
        return
    try:
        slurm = ask_slurm()
    except ClusterError as error:
        command = "scontrol ping"
        yield Examined(part="Slurm", state="wrong", found=str(error), command=command, needed=needs.slurm)
        return
    yield Examined(part="Slurm", state="ok", found=f"{slurm.version}, cluster {slurm.cluster}", needed=needs.slurm)
    yield from _jobs(needs, slurm)


def _jobs(needs: SiteNeeds, slurm: SlurmFacts) -> Iterator[Examined]:
    names = [each.name for each in slurm.partitions]
    default = next((each.name for each in slurm.partitions if each.default), None)
    wanted = needs.partition or default
    if wanted is None or set(wanted.split(",")) - set(names):
        found = f"{wanted or 'no default'}; there are {', '.join(names) or 'none'}"
        command = "sinfo -s, then set `partition` in the system's file"
        yield Examined(part="partition", state="wrong", found=found, command=command, needed=needs.slurm)
    else:
        yield Examined(part="partition", state="ok", found=wanted, needed=needs.slurm)
    accounts = ", ".join(slurm.accounts)
    if needs.account and slurm.accounts and needs.account not in slurm.accounts:
        found, command = f"{needs.account}; yours are {accounts}", "set `account` in the system's file"
        yield Examined(part="account", state="wrong", found=found, command=command, needed=needs.slurm)
    else:
        found = needs.account or (f"Slurm's default of {accounts}" if accounts else "Slurm names none for you")
        yield Examined(part="account", state="ok", found=found, needed=needs.slurm)


def _folder(needs: SiteNeeds) -> Iterator[Examined]:
    folder = needs.run_dir.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    mount = mount_of(there)
    found, command = f"{folder} on {kind_of(mount)}", "set llmbench_run_dir in pytest.ini to a folder of your own"
    if not there.is_dir() or not os.access(there, os.W_OK):
        yield Examined(part="run folder", state="wrong", found=f"{found}: cannot be written", command=command)
        return
    try:
        refuse_shared(folder)
    except ConfigError as error:
        yield Examined(part="run folder", state="wrong", found=str(error), command=command)
        return
    if needs.slurm and not is_network(mount) and not _is_alone():
        command = "set llmbench_run_dir in pytest.ini to a folder that all nodes share"
        yield Examined(part="run folder", state="wrong", found=f"{found}, which nodes do not share", command=command)
    else:
        yield Examined(part="run folder", state="ok", found=found)


def _is_alone() -> bool:
    """Whether each node of Slurm is this machine."""
    try:
        hosts = ask_slurm().hosts
    except ClusterError:
        return False
    here = platform.node().partition(".")[0]
    return bool(hosts) and all(host.startswith("127.") or host.partition(".")[0] == here for host in hosts)


def _rest(needs: SiteNeeds) -> Iterator[Examined]:
    wanted = {each.container.runtime for each in needs.system.environments.values() if each.container is not None}
    for name, (command, cure) in _RUNTIMES.items():
        yield replace(_runtime(name, command, cure), needed=name in wanted)
    gpus = gpus_here()
    needed = bool(needs.system.gpus_per_node) and not needs.slurm
    if gpus:
        yield Examined(part="GPUs", state="ok", found=f"{gpus} on this machine", needed=needed)
    else:
        found = "none on this machine" if gpus == 0 else "none of NVIDIA's on this machine"
        yield Examined(part="GPUs", state="missing", found=found, command="nvidia-smi", needed=needed)


def _runtime(name: str, command: str, cure: str) -> Examined:
    """A runtime of containers: pyxis is a part of srun, and Docker may have a command and no daemon."""
    absent = Examined(part=name, state="missing", found="not here", command=cure)
    path = shutil.which(command)
    if path is None:
        return absent
    asked = {"pyxis": [command, "--help"], "docker": [command, "version", "--format", "{{.Server.Version}}"]}.get(name)
    try:
        told = _output(asked) if asked is not None else ""
    except subprocess.TimeoutExpired:
        found = f"{path} does not answer within {_ANSWER_S:.0f} s"
        return Examined(part=name, state="wrong", found=found, command=" ".join(asked or []))
    if name == "pyxis" and "--container-image" not in told:
        return absent
    if name == "docker" and not told.strip():
        found = f"{path}, and no Docker daemon answers it"
        return Examined(part=name, state="wrong", found=found, command="docker info")
    return Examined(part=name, state="ok", found=path)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S).stdout
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
