"""A fault that ranks cause on purpose, by which an operator tests the gate."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.plain import Positive
from pytest_llmbench.core.wire import layout

FaultName = Literal[
    "damaged-log", "die", "far-cores", "full-disk", "few-threads", "hang", "ll-protocol", "lost-node", "nan", "no-nvls",
    "no-p2p", "no-shm", "one-channel", "one-core", "oom", "pageable-memory", "slow-rank", "small-buffers", "stop",
    "tcp", "tree", "wrong-numbers",
]  # fmt: skip
# Faults of all ranks of all checks and runs, with the variables that make them. NCCL and the machine are then really
# slow, as where an image or a login file sets these.
LASTING: Mapping[FaultName, Mapping[str, str]] = {
    #: fault far-cores: ranks that use NCCL run on cores of another socket than their GPU
    "far-cores": {},
    "few-threads": {"NCCL_NTHREADS": "64"},  #: fault few-threads: NCCL copies with 64 threads
    "ll-protocol": {"NCCL_PROTO": "LL"},  #: fault ll-protocol: NCCL's protocol for small messages
    "no-nvls": {"NCCL_NVLS_ENABLE": "0"},  #: fault no-nvls: NVLink SHARP is off
    "no-p2p": {"NCCL_P2P_DISABLE": "1"},  #: fault no-p2p: GPUs of a node exchange data over host memory
    #: fault no-shm: GPUs of a node exchange data over the network
    "no-shm": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    "one-channel": {"NCCL_MAX_NCHANNELS": "1"},  #: fault one-channel: NCCL uses one channel
    "one-core": {},  #: fault one-core: all ranks of a node run on one core
    "pageable-memory": {},  #: fault pageable-memory: copies between host and GPU are from memory that is not pinned
    "small-buffers": {"NCCL_BUFFSIZE": "65536"},  #: fault small-buffers: NCCL's buffers have 64 KiB
    "tcp": {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},  #: fault tcp: nodes exchange data over TCP
    "tree": {"NCCL_ALGO": "allreduce:tree"},  #: fault tree: all_reduce goes by trees; NCCL 2.24 or newer
}
FAULTS: tuple[FaultName, ...] = tuple(fault for fault in get_args(FaultName) if fault not in LASTING)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedFault:
    """A fault, and the 1-based step in which it strikes; None for one that lasts."""

    name: FaultName
    step: Positive | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `FAULT@STEP`, or the name of a lasting fault. Raises ConfigError: it is not that."""
        name, _, step = text.partition("@")
        known = next((fault for fault in get_args(FaultName) if fault == name), None)
        if known is None:
            raise ConfigError(unknown("fault", name, get_args(FaultName)))
        if known in LASTING:
            if step:
                raise ConfigError(f"{text!r} lasts from the beginning, and has no step: {name}")
            return cls(name=known, step=None)
        if not (step.isascii() and step.isdecimal() and int(step)):
            raise ConfigError(f"{text!r} must be FAULT@STEP with a step >= 1, such as {name}@8")
        return cls(name=known, step=int(step))

    @property
    def env(self) -> Mapping[str, str]:
        """Variables of all ranks that make the fault."""
        return LASTING.get(self.name, {})

    def __str__(self) -> str:
        return self.name if self.step is None else f"{self.name}@{self.step}"


def note_strike(folder: Path, rank: int, fault: SimulatedFault) -> None:
    """Record that a rank is about to cause a fault, which it may not survive."""
    path = folder / layout.STRIKES / layout.rank_name(rank)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(f"{fault}\n", encoding="ascii")


def strikes(folder: Path) -> str | None:
    """The faults that ranks of a run have caused; None if there are none."""
    try:
        faults = {
            path.read_text(encoding="ascii", errors="replace").strip() for path in (folder / layout.STRIKES).iterdir()
        }
    except OSError:
        return None
    return ", ".join(sorted(faults)) or None
