"""A run that may be judged before its last step: where it was, and what that saved."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.schema import Strict


class EarlyVerdict(Strict):
    """The looks at one run of a session with `--llmbench-early-verdict`."""

    planned: PositiveInt
    """Number of steps of the recipe."""
    look: PositiveInt
    """Number of steps by which the run is judged; all of them, if it was not ended early."""
    looks: tuple[PositiveInt, ...] = ()
    """Numbers of steps after which the run was looked at; empty for a run that had to run whole."""
    done: NonNegativeInt = 0
    """Number of steps that the ranks did: a few more than `look`, as they go on during a look."""
    alpha: PositiveFloat
    """Probability, on each side, that the interval at `look` is wrong."""
    peak_step_s: PositiveFloat | None = None
    """Seconds of a step at the published peak of the GPUs; null if unknown."""
    decided: tuple[str, ...] = ()
    """Each threshold that was decided at `look`, and how."""
    whole: str | None = None
    """Reason why the run was not ended early; null for one that was."""
    hours_spent: float = 0.0
    """Hours from launch to end, in `unit`."""
    hours_saved: float = 0.0
    """Hours of the steps that were not made, at the speed of the others, in `unit`."""
    unit: Literal["GPU-hours", "node-hours"] = "node-hours"
    """Unit of the hours: `GPU-hours`, or `node-hours` for a run without GPUs."""

    @property
    def ended_early(self) -> bool:
        """True if the session ended the run before its last step."""
        return self.whole is None

    def __str__(self) -> str:
        if self.whole is not None:
            return f"it ran whole: {self.whole}"
        by = f"judged by its first {self.look} of {self.planned} steps, and ended after {self.done}"
        return f"{by}: it is not known what would have come later, such as a node that throttles"
