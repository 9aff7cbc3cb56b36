"""The system file of a new site, from what its login node tells."""

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pytest_llmbench.cli.site.probe import SlurmFacts, ask_slurm
from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM, SYSTEMS, Gpu, load_system
from pytest_llmbench.core.errors import ClusterError

_RESERVED = {LOCAL, SLURM, ELSEWHERE}


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteMachine:
    """The system of a new site.

    Attributes:
        keys: of its file.
        notes: decisions and additions that its author has to make.
    """

    keys: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.keys["name"])

    @property
    def gpus(self) -> int:
        """GPUs of a node; 0 where that is not known."""
        return int(self.keys.get("gpus_per_node") or 0)

    @property
    def text(self) -> str:
        """The file, without the line that names its schema."""
        notes = "".join(f"# {note}\n" for note in self.notes)
        return f"{notes}{yaml.safe_dump(dict(self.keys), sort_keys=False, allow_unicode=True)}"


def probe_machine() -> SiteMachine:
    """Describe the cluster of this login node; this machine, where no Slurm answers."""
    known = SYSTEMS.usable().values()
    here = load_system(LOCAL, known)
    names = {path.stem.lower() for folder in known for path in folder.glob("*.yaml")} | _RESERVED
    try:
        slurm = ask_slurm()
    except ClusterError:
        why = "No Slurm answered `llmbench init`, so this describes the machine on which it ran."
        keys: dict[str, Any] = {"name": _free(platform.node() or "site", names), "description": here.description}
        keys |= {"cluster": "local", "gpus_per_node": here.gpus_per_node}
        keys |= {} if here.gpus_per_node else {"cpu_ranks_per_node": here.cpu_ranks_per_node}
        return SiteMachine(keys=keys | _gpu(here.gpu), notes=[why, *_unknown_gpu(here.gpus_per_node, here.gpu)])
    return _of_slurm(slurm, here.gpu, names)


def _of_slurm(slurm: SlurmFacts, seen: Gpu | None, names: set[str]) -> SiteMachine:
    best = slurm.best
    keys: dict[str, Any] = {"name": _free(slurm.cluster or "cluster", names), "cluster": "slurm"}
    notes = ["`llmbench init` wrote this from sinfo, scontrol, sacctmgr and nvidia-smi. Correct it where it is wrong."]
    if best is not None:
        keys["description"] = f"{best.nodes} nodes in partition {best.name}, Slurm {slurm.version}"
        keys |= {} if best.gpus is None else {"gpus_per_node": best.gpus}
        keys["partition"] = best.name
        if len(slurm.partitions) > 1:
            notes.append(f"Partitions: {', '.join(each.name for each in slurm.partitions)}.")
        if best.gpus is None:
            notes.append("The nodes of this partition differ in their GPUs: add gpus_per_node, or a constraint.")
    if len(slurm.accounts) == 1:
        keys["account"] = slurm.accounts[0]
    elif slurm.accounts:
        notes.append(f"You have several accounts: add account, one of {', '.join(slurm.accounts)}.")
    gpus = best.gpus if best is not None else None
    seen = seen if gpus != 0 else None
    told = f" Slurm calls it {best.gres}." if best is not None and best.gres else ""
    return SiteMachine(keys=keys | _gpu(seen), notes=[*notes, *(each + told for each in _unknown_gpu(gpus, seen))])


def _gpu(gpu: Gpu | None) -> dict[str, Any]:
    return {} if gpu is None else {"gpu": gpu.model_dump(mode="json")}


def _unknown_gpu(gpus: int | None, gpu: Gpu | None) -> list[str]:
    if gpus == 0 or gpu is not None:
        return []
    return ["Add gpu: model as nvidia-smi names it, memory_gib, peak_tflops and their source; `mfu` needs it."]


def _free(name: str, taken: set[str]) -> str:
    """A legal name that no other system has."""
    legal = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:80] or "site"
    return f"{legal}_site" if legal.lower() in taken else legal
