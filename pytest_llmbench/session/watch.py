"""Watches a run for progress and its time limits."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pytest_llmbench.core.durations import format_minutes
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import Progress
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.readers.stacks import Answers, read_answers
from pytest_llmbench.readers.steps.progress import name_ranks, phases

# Ranks look for a request every 3 seconds, and report the state of a silent one at their next look; py-spy takes up to
# 5 seconds a process.
_ANSWERS_S, _ANSWERS_OF_COMMANDS_S = 15.0, 30.0
# One that is in a pause is asked again.
_AGAIN_S = 60.0
# The folder is on a file server that many runs share.
_LOOK_S = 0.5
_REMEMBERED_STEPS = 100
# What ranks that are done give Slurm to close their step or job, before it is taken for closed.
_CLOSE_S = 10.0
_AS_LONG_AGAIN = 2.0


class Stall:
    """The requests for the stacks of a run that seems to hang: one, and others in a pause, the last one at `since`."""

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder
        self._answers: Answers | None = None
        self._command = (folder / layout.DRIVER).exists()
        self._standing = phases(folder)
        self.ask(now)

    def over(self, now: float) -> bool:
        """True if all have answered, or had the time to."""
        if self._answers is None:
            names = {path.stem for path in (self._folder / layout.STACKS).glob("*.txt")}
            limit_s = _ANSWERS_OF_COMMANDS_S if self._command else _ANSWERS_S
            if self._asked <= names or now - self.since >= limit_s:
                self._answers = read_answers(self._folder, str(self._number))
        return self._answers is not None

    def moves(self) -> bool:
        """True if a rank has advanced since the first request, so that the run is only slow."""
        return phases(self._folder) != self._standing

    @property
    def pause(self) -> str | None:
        """Work of a process that may take long, by the answers."""
        return self._answers.pause if self._answers is not None else None

    def __str__(self) -> str:
        stacks, states = (self._answers.stacks, self._answers.states) if self._answers is not None else ({}, {})
        place = self._folder / layout.STACKS
        if self._command:
            return f"states and stacks of its processes: {place}" if stacks else ""
        silent = sorted(self._asked - {*stacks})
        summary = f"stacks of {len(stacks)} of {counted(len(self._asked), 'rank')}: {place}" if self._asked else ""
        if not silent:
            return summary
        who = name_ranks(self._folder, [int(name.rpartition("-")[2]) for name in silent])
        return f"{summary}; {who} cannot answer: {states.get(silent[0], 'its process or its node stands still')}"

    @property
    def _asked(self) -> set[str]:
        """Names of the answers to wait for: of the driver, or of the ranks that have something left to do."""
        if self._command:
            return {layout.PROCESSES.removesuffix(".txt")}
        return {layout.rank_name(rank) for rank, standing in self._standing.items() if standing.phase != "done"}

    def ask(self, now: float) -> None:
        """Ask for the stacks of now."""
        for old in (self._folder / layout.STACKS).glob("*.txt"):
            old.unlink(missing_ok=True)
        file = self._folder / layout.ASKED
        self._number = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
        self.since, self._answers = now, None
        write_text(file, str(self._number))


class Watch:
    """Follows one run from the moment its ranks start, by our own clock: `srun --time` fires late."""

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
        """Take one look; return the problem for which the run has to be ended, or None."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        seen = self._engine.progress(self._folder)
        if seen is not None and seen != self.progress:
            # A framework may log only every tenth step, or leave out the duration of a step.
            since = now - self._moved if self.progress is not None else 0.0
            self._durations.append(max(since, seen.seconds or 0.0))
            self._longest = max(self._longest, self._durations[-1])
            self.progress, self._moved = seen, now
        if now - self._started > self._limit_s:
            return Problem(
                kind="time_limit",
                message=f"not finished within its time limit of {self._limit} "
                f"(step {self.progress.step if self.progress else 0} of {self._recipe.steps}): give a longer --time, "
                "or a longer time_limit in the recipe",
            )
        return self._unless_alive(self._stuck(now), now)

    def work_is_done(self, done: Callable[[], bool]) -> bool:
        """True if all work is done, and Slurm is slow to report it.

        `done` reads the end of the ranks from their logs; it is called now and then, once progress has stopped.
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
        """Request the stacks of a run that seems to hang; let it go on if it moves or pauses for long work."""
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
            if now - self._stall.since >= _AGAIN_S:
                self._stall.ask(now)
            return None
        paused = f"; a process {pause} for longer than deadlines.pause_s, {pause_s:g} s" if pause is not None else ""
        message = "; ".join(filter(None, (f"{problem.message}{paused}", str(self._stall))))
        return problem.model_copy(update={"message": message})

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
            message=f"no step for {quiet:.0f} s after step {self.progress.step} of {self._recipe.steps}, where a step "
            f"takes {usual:.3g} s (recipe: deadlines.hang_factor {deadlines.hang_factor:g}, "
            f"hang_floor_s {deadlines.hang_floor_s:g}): {self._engine.laggards(self._folder)}",
        )
