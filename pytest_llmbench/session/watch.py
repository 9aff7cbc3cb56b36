"""Watching a run: is it getting on, and when has it had its time?"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pytest_llmbench.core.durations import format_minutes
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import Progress
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.session.ending.stall import Stall

# The folder is on a file server that many runs share.
_LOOK_S = 0.5
_REMEMBERED_STEPS = 100
# What ranks that are done give Slurm to close their step or job, before it is taken for closed.
_CLOSE_S = 10.0
_AS_LONG_AGAIN = 2.0


class Watch:
    """Follows one run from the moment its ranks start. Our own clock decides: `srun --time` fires late.

    Attributes:
        progress: the last step seen.
    """

    def __init__(self, recipe: Recipe, folder: Path, time_limit_min: int) -> None:
        self.progress: Progress | None = None
        self._recipe = recipe
        self._last = recipe.steps
        self._engine = get_engine(recipe.engine)
        self._folder = folder
        self._limit_s = 60.0 * time_limit_min
        self._limit = format_minutes(time_limit_min)
        self._started = self._moved = time.monotonic()
        self._looked = 0.0
        self._looked_for_end = self._started
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._longest = 0.0
        self._stall: Stall | None = None

    def look(self) -> Problem | None:
        """Take one look; return why the run has to be ended, or None."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        seen = self._engine.progress(self._folder)
        if seen is not None and seen != self.progress:
            # A framework may log every tenth step only, or not say how long a step takes.
            since = now - self._moved if self.progress is not None else 0.0
            self._durations.append(max(since, seen.seconds or 0.0))
            self._longest = max(self._longest, self._durations[-1])
            self.progress, self._moved = seen, now
        return self._out_of_time(now) or self._unless_alive(self._stuck(now), now)

    def work_is_done(self, done: Callable[[], bool]) -> bool:
        """Whether all work is done, and Slurm is slow to say so.

        `done` reads what the ranks have said of their end; it is asked now and then, once nothing moves any more.
        """
        now = time.monotonic()
        if now - max(self._moved, self._looked_for_end) < _CLOSE_S or self.progress is None:
            return False
        self._looked_for_end = now
        return self.progress.step >= self._last and done()

    def end_after(self, step: int) -> None:
        """Expect the end after this step, or a few later: the ranks were asked for it."""
        self._last = step

    def _unless_alive(self, problem: Problem | None, now: float) -> Problem | None:
        """Ask a run that seems to hang for its stacks first; leave it alone if it moves or is in a long pause."""
        if problem is None:
            self._stall = None
            return None
        if self._stall is None:
            self._stall = Stall(self._folder, now)
        if not self._stall.over(now):
            return None
        if self._stall.moves():
            self._stall, self._moved = None, now
            return None
        pause_s = self._recipe.deadlines.pause_s
        pause = self._stall.pause
        if pause is not None and now - self._moved <= pause_s:
            self._stall.ask_again(now)
            return None
        paused = f"; a process {pause} for longer than deadlines.pause_s, {pause_s:g} s" if pause is not None else ""
        told = "; ".join(filter(None, (f"{problem.message}{paused}", str(self._stall))))
        return problem.model_copy(update={"message": told})

    def _out_of_time(self, now: float) -> Problem | None:
        if now - self._started <= self._limit_s:
            return None
        return Problem(
            kind="time_limit",
            message=f"not finished within its time limit of {self._limit} (step {self._at} of {self._recipe.steps}): "
            f"give a longer --time, or a longer time_limit in the recipe",
        )

    def _stuck(self, now: float) -> Problem | None:
        deadlines = self._recipe.deadlines
        quiet = now - self._moved
        if self.progress is None:
            if deadlines.startup_s is None or quiet <= deadlines.startup_s:
                return None
            return Problem(
                kind="no_start",  #: problem no_start: no first step within `deadlines.startup_s`
                message=f"no first step within {deadlines.startup_s:g} s (recipe: deadlines.startup_s): "
                f"{self._engine.laggards(self._folder)}",
            )
        # What took long before may do so again: a compile for another shape, an evaluation.
        usual = median(self._durations)
        allowed = max(deadlines.hang_floor_s, deadlines.hang_factor * usual, _AS_LONG_AGAIN * self._longest)
        if quiet <= allowed:
            return None
        if self.progress.step >= self._last:
            return Problem(
                #: problem no_end: after the last step the ranks did not end, and not all of them logged the end of
                #:  their work
                kind="no_end",
                message=f"the ranks did not end within {quiet:.0f} s of the last step: "
                f"{self._engine.laggards(self._folder)}",
            )
        #: problem hang: no step for longer than `deadlines` allows; the message names the ranks that lag and the folder
        #:  of the [stacks](how-to/judge/find-out-why-a-run-hangs.md)
        return Problem(
            kind="hang",
            message=f"no step for {quiet:.0f} s after step {self._at} of {self._recipe.steps}, where a step takes "
            f"{usual:.3g} s (recipe: deadlines.hang_factor {deadlines.hang_factor:g}, "
            f"hang_floor_s {deadlines.hang_floor_s:g}): {self._engine.laggards(self._folder)}",
        )

    @property
    def _at(self) -> int:
        return self.progress.step if self.progress else 0
