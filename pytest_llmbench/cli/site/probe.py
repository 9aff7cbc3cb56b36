"""Facts of a cluster from the commands of its login node: Slurm's, and nvidia-smi."""

import getpass
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.cluster.slurm import commands
from pytest_llmbench.core.errors import ClusterError

_GPUS = re.compile(r"gpu(?::(?P<model>[A-Za-z][\w.-]*))?:(?P<count>\d+)", re.ASCII)
_PING_S = 5.0
NEEDED_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition, as sinfo shows it."""

    name: str
    default: bool  # True if jobs without a partition go there
    nodes: int  # number of nodes
    gpus: int | None  # GPUs of each node; None if nodes differ
    gres: str = ""  # Slurm's name of the GPU model; empty unless there is exactly one


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmFacts:
    """A Slurm that answers."""

    cluster: str  # name of the cluster
    version: str
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]  # accounts of this user; empty without an accounting database
    hosts: tuple[str, ...]  # addresses of its nodes: IP addresses or names

    @property
    def best(self) -> Partition | None:
        """The default partition if it has GPUs, else the first one that does, else the default one."""
        with_gpus = [partition for partition in self.partitions if partition.gpus != 0]
        ranked = sorted(with_gpus or self.partitions, key=lambda partition: not partition.default)
        return ranked[0] if ranked else None


def missing_commands() -> list[str]:
    """Slurm's commands that PATH lacks."""
    return [name for name in NEEDED_COMMANDS if shutil.which(name) is None]


def ask_slurm() -> SlurmFacts:
    """Ask sinfo, scontrol and sacctmgr. Raises ClusterError: Slurm is missing or fails; the message is Slurm's."""
    _ping()
    settings = commands.run(["scontrol", "show", "config"])
    return SlurmFacts(
        cluster=_setting(settings, "ClusterName"),
        version=_setting(settings, "SLURM_VERSION"),
        partitions=partitions_in(commands.run(["sinfo", "--noheader", "--format=%P|%D|%G"])),
        accounts=_accounts(),
        hosts=tuple(dict.fromkeys(commands.run(["sinfo", "--noheader", "--Node", "--format=%o"]).split())),
    )


def _ping() -> None:
    """Ping the controller, which is answered at once; every other command retries for up to a minute."""
    answer = commands.ask(["scontrol", "ping"], lambda: _PING_S)
    if answer.code or " is UP" not in answer.stdout:
        message = commands.plain(answer.stdout.replace("*", "")) or commands.slurm_words(answer.stderr)
        raise ClusterError(message or "scontrol ping names no controller")


def partitions_in(text: str) -> tuple[Partition, ...]:
    """Read `partition|nodes|gres` of sinfo, a line for each kind of node in a partition."""
    kinds: dict[str, list[tuple[int, int, str]]] = {}
    for line in text.splitlines():
        name, nodes, gres = [*line.split("|"), "", ""][:3]
        if not nodes.strip().isdecimal():
            continue
        matches = list(_GPUS.finditer(gres))
        models = {match["model"] or "" for match in matches}
        gpus = sum(int(match["count"]) for match in matches)
        kinds.setdefault(name.strip(), []).append((int(nodes), gpus, models.pop() if len(models) == 1 else ""))
    return tuple(_partition(name, rows) for name, rows in kinds.items())


def _partition(name: str, kinds: Sequence[tuple[int, int, str]]) -> Partition:
    counts, models = {gpus for _, gpus, _ in kinds}, {model for *_, model in kinds}
    return Partition(
        name=name.removesuffix("*"),
        default=name.endswith("*"),
        nodes=sum(nodes for nodes, *_ in kinds),
        gpus=counts.pop() if len(counts) == 1 else None,
        gres=models.pop() if len(models) == 1 else "",
    )


def _setting(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*=\s*(\S+)", text, re.MULTILINE)
    return match[1] if match is not None else ""


def _accounts() -> tuple[str, ...]:
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}"]
    try:
        text = commands.run([*command, "format=Account"])
    except ClusterError:
        return ()
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
