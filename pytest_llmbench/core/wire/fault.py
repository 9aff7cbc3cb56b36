"""A fault that ranks cause on purpose, so that an operator sees that the gate fails when it must."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.plain import Positive
from pytest_llmbench.core.wire import layout

FaultName = Literal[
    "damaged-log", "die", "full-disk", "hang", "lost-node", "nan", "oom", "slow-rank", "stop", "wrong-numbers",
]  # fmt: skip
FAULTS: tuple[FaultName, ...] = get_args(FaultName)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedFault:
    """A fault, and the 1-based step in which it strikes."""

    name: FaultName
    step: Positive

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `FAULT@STEP`.

        Raises:
            ConfigError: it is not that.
        """
        name, _, step = text.partition("@")
        known = next((fault for fault in FAULTS if fault == name), None)
        if known is None:
            raise ConfigError(unknown("fault", name, FAULTS))
        if not (step.isascii() and step.isdecimal() and int(step)):
            raise ConfigError(f"{text!r} must be FAULT@STEP with a step >= 1, such as {name}@8")
        return cls(name=known, step=int(step))

    def __str__(self) -> str:
        return f"{self.name}@{self.step}"


def note_strike(folder: Path, rank: int, fault: SimulatedFault) -> None:
    """Write down that a rank causes a fault now: before it does, because it may not live on."""
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
