"""Systems: one cluster each, described by a YAML file.

Three exist without a file: `local` is this machine, as probed, `slurm` a Slurm cluster with an unknown peak whose GPU
counts come from the options or the recipes, and `elsewhere` the unknown cluster of replayed logs.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from pytest_llmbench.checks.base import CheckSettings
from pytest_llmbench.cluster.slurm.topology import expand_hosts
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.gpus import GPUS, may_be_gpu, published, same_gpu
from pytest_llmbench.core.paths import folder_of, shipped
from pytest_llmbench.core.recipe.environments import Environment, Network
from pytest_llmbench.core.recipe.reference import Reference, refuse_contradictions
from pytest_llmbench.core.schema import Name, Strict, validate
from pytest_llmbench.core.yaml_files import read_yaml

LOCAL = "local"
SLURM = "slurm"
ELSEWHERE = "elsewhere"


# Least and most that a GPU may have: with other units, a number is outside.
_PEAKS = ("bf16", "fp16", "fp32", "tf32", "fp64", "fp8", "fp6", "fp4", "int8")
_TFLOPS, _GIB = (1.0, 100_000.0), (0.5, 4096.0)


class Gpu(Strict):
    """A GPU model."""

    model: str
    """GPU model, as the driver names it without the vendor or shorter, such as `H100`."""
    memory_gib: PositiveFloat
    """Memory of one GPU, GiB."""
    peak_tflops: Mapping[str, PositiveFloat]
    """Published dense peak of one GPU, TFLOP/s, for `mfu` and `--plan`."""
    source: str
    """Document that publishes the peaks."""

    @field_validator("memory_gib")
    @classmethod
    def _in_gib(cls, memory: float) -> float:
        _refuse_unit("", memory, "GiB", _GIB, (2.0**30, 2.0**20, 2.0**10, 1e9))
        return memory

    @field_validator("peak_tflops")
    @classmethod
    def _in_tflops(cls, peaks: Mapping[str, float]) -> Mapping[str, float]:
        for name, peak in peaks.items():
            if name not in _PEAKS:
                raise ValueError(unknown("precision", name, _PEAKS))
            _refuse_unit(f"{name}: ", peak, "TFLOP/s", _TFLOPS, (1e12, 1e9, 1e6, 1e3, 1e-3))
        return peaks


def _refuse_unit(what: str, value: float, unit: str, bounds: tuple[float, float], factors: Iterable[float]) -> None:
    """Refuse a number that no GPU has; `factors` are those of units that may have been meant, in this one."""
    low, high = bounds
    if not low <= value <= high:
        meant = next((f"; write {value / factor:.5g}" for factor in factors if low <= value / factor <= high), "")
        raise ValueError(
            f"{what}{value:g} is not the number of {unit} of one GPU, which is {low:g} to {high:,.0f}{meant}"
        )


class System(Strict):
    """One cluster."""

    name: Name
    """Name of the system for `--system` and `applies_to.system`."""
    description: str = ""
    """Description for people."""
    source: str = ""
    """Document that describes the hardware."""
    cluster: Literal["slurm", "local"]
    """How jobs reach the nodes: through Slurm, or on this machine."""
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    """GPUs of one node; absent, each recipe's own number."""
    cpu_ranks_per_node: PositiveInt = 1
    """Number of ranks per node for a run without GPUs."""
    gpu: Gpu | None = None
    """GPU model; absent when it is unknown, or there is none."""
    network: Network | None = None
    """NICs of a node for collectives; absent, they are counted on the node."""
    partition: str | None = None
    """Default of `--partition`."""
    account: str | None = None
    """Default of `--slurm account=...`."""
    qos: str | None = None
    """Default of `--slurm qos=...`."""
    reservation: str | None = None
    """Default of `--slurm reservation=...`."""
    constraint: str | None = None
    """Default of `--slurm constraint=...`."""
    group: str | None = None
    """Unix group that may read a session's reports, records and logs at its end; absent, its user alone."""
    env: Mapping[str, str] = {}
    """Environment variables of every rank, including the ranks of a command."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before the ranks start: in a job's script on its first node, in a held allocation by each
    rank.
    """
    srun_args: tuple[str, ...] = ()
    """Further arguments of srun."""
    python: str | None = None
    """Python interpreter of our own processes on the nodes; absent, the one that runs pytest."""
    environments: Mapping[str, Environment] = {}
    """Installation of each framework that runs as its own command, by engine."""
    references: Mapping[str, tuple[Reference, ...]] = {}
    """Thresholds of this site, by recipe; one with the name of a shipped reference replaces it."""
    topology: Mapping[str, Mapping[str, str]] | str | None = None
    """Nodes of each rack or switch by level, inner levels first, such as `{rack: {r1: "n[01-18]"}}`; or the path of a
    `topology.yaml` or `topology.conf`. Absent, Slurm is asked.
    """
    validation: Mapping[str, CheckSettings] = {}
    """Settings and bounds of each check, by check."""

    @field_validator("topology")
    @classmethod
    def _readable(cls, topology: object) -> object:
        for groups in topology.values() if isinstance(topology, dict) else ():
            try:
                [expand_hosts(nodes) for nodes in groups.values()]
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return topology

    @field_validator("references")
    @classmethod
    def _consistent(cls, references: Mapping[str, tuple[Reference, ...]]) -> Mapping[str, tuple[Reference, ...]]:
        for recipe, own in references.items():
            try:
                refuse_contradictions(own)
            except ValueError as error:
                raise ValueError(f"{recipe}: {error}") from error
        return references


def load_system(name_or_file: str, folders: Iterable[Path]) -> System:
    """Find a system by name in `folders` or among the three built-in ones, or read the file given.

    Raises ConfigError if the system is unknown or its file is wrong.
    """
    known = _systems_in(folders)
    if name_or_file == LOCAL:
        return probe_local()
    words = {SLURM: "a Slurm cluster without a system file", ELSEWHERE: "an unknown cluster"}
    if name_or_file in words:
        return System(name=name_or_file, description=words[name_or_file], cluster="slurm")
    if name_or_file in known:
        return known[name_or_file]
    path = Path(name_or_file)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        return _read(path)
    names = unknown("system", name_or_file, [LOCAL, *known])
    message = f"{names}; or give a YAML file, or {SLURM} for {words[SLURM]}"
    raise ConfigError("; ".join([message, *SYSTEMS.broken().values()]))


def probe_local() -> System:
    """Describe this machine: its GPUs that are visible, by nvidia-smi, else its CPUs.

    The peak is that of the GPU's data sheet; for other GPUs it is missing, and statistics that need it are left out.
    """
    gpus, cpus = _nvidia_smi()[: _most_visible()], len(os.sched_getaffinity(0))
    known = published(gpus[0]) if gpus else None
    gpu = None if known is None else Gpu(
        model=known.model, memory_gib=known.memory_gib, peak_tflops=known.peak_tflops,
        source=f"NVIDIA's data sheet of {known.model}, dense rates without sparsity",
    )  # fmt: skip
    hardware = f"{len(gpus)} × {gpus[0]}" if gpus else f"{cpus} CPUs ({platform.machine()})"
    return System(
        name=LOCAL, description=f"{hardware} on {platform.node()}{'' if gpus else ', no GPU'}", cluster="local",
        gpus_per_node=len(gpus), gpu=gpu,
        cpu_ranks_per_node=1 if gpus else min(2, cpus),
    )  # fmt: skip


def published_tflops(device: str, precision: str, own: Gpu | None = None) -> tuple[float, float] | None:
    """The published dense peak of a GPU, TFLOP/s, by the system's own file or its data sheet; None if unknown.

    It is a lowest and a highest peak. They differ for fp32 alone, whose matrices may be multiplied as TF32, faster.
    `device` is as the driver names it, and `own` the GPU of the system's file.
    """
    for gpu in (own, *GPUS):
        if gpu is not None and same_gpu(gpu.model, device):
            names = ("fp32", "tf32") if precision == "fp32" else (precision.removeprefix("mx"),)
            peaks = [gpu.peak_tflops[name] for name in names if name in gpu.peak_tflops]
            return (min(peaks), max(peaks)) if peaks else None
    return None


def doubtful_gpu(own: Gpu) -> Iterator[str]:
    """Yield numbers of a system's GPU that are far from those of every data sheet of such a GPU."""
    alike = [gpu for gpu in GPUS if may_be_gpu(gpu.model, own.model)]
    numbers = {"memory_gib": (own.memory_gib, {gpu.memory_gib for gpu in alike})}
    for name, peak in own.peak_tflops.items():
        known = {gpu.peak_tflops[name] for gpu in alike if name in gpu.peak_tflops}
        numbers[f"peak_tflops: {name}"] = (peak, known)
    for key, (value, known) in numbers.items():
        if known and not 0.6 * min(known) <= value <= 1.3 * max(known):
            values, times = " or ".join(f"{number:g}" for number in sorted(known)), value / max(known)
            yield f"gpu: {key}: {value:g} is {times:.3g} times what is published of {own.model} (dense): {values}"


def visible_gpus() -> tuple[str, ...] | None:
    """The GPUs of this machine that its user left visible, by index or UUID; None where all are."""
    #: variable CUDA_VISIBLE_DEVICES: with `--cluster local`: the GPUs of all ranks
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else tuple(filter(None, map(str.strip, named.split(","))))


def _most_visible() -> int | None:
    visible = visible_gpus()
    return None if visible is None else len(visible)


def gpus_here() -> int | None:
    """Visible GPUs here, by nvidia-smi or their device files; None where there may be GPUs of another vendor."""
    if Path("/dev/kfd").exists():
        return None
    here, visible = _gpus_on(os.environ.get("PATH", "")), _most_visible()
    return here if visible is None else min(here, visible)


@cache
def _gpus_on(_path: str) -> int:
    """Asked once for each PATH, as nvidia-smi takes seconds to start."""
    return max(len(_nvidia_smi()), sum(1 for _ in Path("/dev").glob("nvidia[0-9]*")))


def _systems_in(folders: Iterable[Path]) -> dict[str, System]:
    systems, files = dict[str, System](), dict.fromkeys((LOCAL, SLURM, ELSEWHERE), "llmbench itself")
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            system = _read(path)
            if (other := files.setdefault(system.name, str(path))) != str(path):
                raise ConfigError(f"{path}: {other} has a system {system.name!r}, too: rename one of them")
            systems[system.name] = system
    return systems


def _accept(_: str, thing: object) -> Path:
    folder = folder_of(thing)
    if folder != shipped("systems"):  # those are read by every session, and tested
        _systems_in([folder])
    return folder


# Folders of system files by the name of who brings them.
SYSTEMS: Extensions[Path] = Extensions("folder of systems", "systems", _accept)


def _read(path: Path) -> System:
    return validate(System, read_yaml(path), str(path))


def _nvidia_smi() -> list[str]:
    """Names of this machine's GPUs; empty without a working driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
