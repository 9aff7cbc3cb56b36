"""The machine of the whole path: its GPUs, what it lacks, its Slurm, and the systems that describe it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[3]
_SYSTEMS = Path(__file__).parent / "systems"
_PACKAGES = ("numpy", "pydantic", "pytest", "submitit", "torch", "typer", "yaml")
_OLDEST_PYTEST = (9, 1)
# Programs that tools/slurm needs, apart from those of every shell.
_COMMANDS = ("awk", "bash", "cksum", "flock", "getent", "hostname", "ldd", "realpath", "setsid", "stat", "unshare")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Hardware and programs of this machine."""

    gpus: int  # how many; the first nodes of Slurm have one each
    rehearsed: bool  # whether ranks compute on the CPU, without GPUs

    @property
    def nodes(self) -> Mapping[str, str]:
        """What up.sh is told of the nodes; in a rehearsal also that they have processors enough."""
        return {"NODES": "gpus", "GPUS": str(self.gpus), "CPUS": "8"} if self.rehearsed else {"GPUS": "real"}


def look(rehearse: int | None) -> Machine:
    """Count the GPUs that PyTorch sees, in a process that ends; none where it cannot be asked."""
    if rehearse is not None:
        return Machine(gpus=rehearse, rehearsed=True)
    ask = "import torch; print(torch.cuda.device_count())"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    return Machine(gpus=int(told[-1]) if told else 0, rehearsed=False)


def problems(machine: Machine, slurm: Path | None) -> list[str]:
    """Everything that this machine lacks, with what to do about it."""
    return list(_problems(machine, slurm))


def _problems(machine: Machine, slurm: Path | None) -> Iterator[str]:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        yield f"Python packages {', '.join(missing)}: benchmarks/gpu/visit.sh installs what prepare.sh made"
    if not metadata.entry_points(group="pytest11", name="llmbench"):  # engines and checks are announced there
        yield "pytest-llmbench as an installed package: a checkout in PYTHONPATH announces no engine and no check"
    if "pytest" not in missing and _version("pytest") < _OLDEST_PYTEST:
        yield f"pytest 9.1 or newer, not {metadata.version('pytest')}"
    if absent := [command for command in _COMMANDS if shutil.which(command) is None]:
        yield f"commands {', '.join(absent)} for tools/slurm/up.sh"
    if os.geteuid() != 0:
        yield "root, for tools/slurm/up.sh"
    if not machine.gpus and "torch" not in missing:
        yield "a GPU that PyTorch sees; without one, --rehearse 4"
    files = [path for path in Path("/dev").glob("nvidia[0-9]*") if path.is_char_device()]
    if machine.gpus != len(files) and not machine.rehearsed:
        yield f"as many GPUs in PyTorch ({machine.gpus}) as files /dev/nvidia0, /dev/nvidia1, ... ({len(files)})"
    if slurm is None and shutil.which("slurmd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        yield "a Slurm: carry the archive of tools/slurm/bundle.sh here, and name it with --slurm"
    if slurm is not None and not slurm.exists():
        yield f"--slurm: there is no {slurm}"


def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:2])


def unpacked(slurm: Path, work: Path) -> Path:
    """The folder of an archive of bundle.sh, unpacked below `work`; a folder is that already."""
    if slurm.is_dir():
        return slurm.resolve()
    with tarfile.open(slurm) as archive:
        archive.extractall(work / "prefix", filter="tar")
    (folder,) = (work / "prefix").iterdir()
    return folder


def write_systems(folder: Path, machine: Machine) -> dict[str, Path]:
    """Write a system's file for each stage: what stands in systems/, and the GPUs of this machine.

    What the package's own system named as this GPU expects of it holds here as well.
    """
    sys.path.insert(0, str(CHECKOUT))
    import yaml  # noqa: PLC0415 - that it is there is seen to first

    folder.mkdir()
    split, whole = (yaml.safe_load((_SYSTEMS / f"{name}.yaml").read_text("utf-8")) for name in ("split", "whole"))
    if machine.rehearsed:
        # The node with all GPUs has several ranks, and each of the others one.
        split, whole = {**split, "gpus_per_node": 0}, {**whole, "gpus_per_node": 0, "cpu_ranks_per_node": 2}
    else:
        split, whole = _with_gpus(split, 1), _with_gpus(whole, machine.gpus)
    one_host = {**split, "name": "one_host", "env": {"NCCL_HOSTID": "one"}}
    systems = {"local": whole, "split": split, "one_host": one_host, "whole": whole}
    for stage, system in systems.items():
        (folder / f"{stage}.yaml").write_text(yaml.safe_dump(system, sort_keys=False), encoding="utf-8")
    return {stage: folder / f"{stage}.yaml" for stage in systems}


def _with_gpus(system: dict[str, Any], gpus: int) -> dict[str, Any]:
    import yaml  # noqa: PLC0415

    from pytest_llmbench.cluster.system import LOCAL, load_system  # noqa: PLC0415
    from pytest_llmbench.core.paths import shipped  # noqa: PLC0415

    gpu = load_system(LOCAL, [shipped("systems")]).gpu
    if gpu is None:
        return {**system, "gpus_per_node": gpus}
    others = (yaml.safe_load(path.read_text("utf-8")) for path in shipped("systems").glob("*.yaml"))
    known: dict[str, Any] = next((other.get("validation", {}) for other in others if other["name"] == gpu.model), {})
    return {
        **system,
        "gpus_per_node": gpus,
        "gpu": gpu.model_dump(mode="json"),
        "validation": {**known, **system["validation"]},
    }
