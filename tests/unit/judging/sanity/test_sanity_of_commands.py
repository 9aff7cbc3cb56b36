"""The sanity gate over a framework's own log: what is left out is judged without, what is doubtful is not judged."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.judging.findings import findings
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.judging.sanity.losses import check_divergence
from tests.conftest import known
from tests.unit.judging.conftest import GPU, small

NODE = Topology(nodes=1, gpus_per_node=2)
MACHINE = Machine(system="elsewhere", device="NVIDIA H200", gpus=2, nodes=1, scale="full")


def steps(last: int = 12, interval: int = 1, **changes: Any) -> tuple[Step, ...]:
    """Lines of a run that learns, one per `interval` steps of 1 s, with values replaced in the last."""
    lines = [
        Step(step=step, interval=interval, seconds=1.0, tokens=256, samples=8, loss=5.0 - step / 100)
        for step in range(interval, last + 1, interval)
    ]
    lines[-1] = lines[-1].model_copy(update=changes)
    return tuple(lines)


def evidence(
    lines: tuple[Step, ...] | None = None, *, recipe: dict[str, Any] | None = None, **changes: Any
) -> Evidence:
    """A good run of 12 steps, with values of its evidence and its series replaced."""
    said = {key: changes.pop(key) for key in list(changes) if key in StepSeries.model_fields}
    given = {"steps": steps() if lines is None else lines, "completed": "done", "world_size": 2, **said}
    good = Evidence(
        recipe=small(**(recipe or {})), topology=NODE, series=StepSeries(**given), hosts=("n1",), wall_s=20.0, gpu=GPU,
        kind="command", device=f"NVIDIA {GPU}", proof="the line `done`",
    )  # fmt: skip
    return dataclasses.replace(good, **changes)


def without(*missing: int) -> tuple[Step, ...]:
    """A line for each second of the 12 steps, but some."""
    return tuple(step for step in steps(12, 2) if step.step not in missing)


CUT = {"end": "time_limit"}
UNREAD: dict[str, Any] = {"unreadable": ("log:6: cut",), "unread": 1}
FIRST = (Step(step=1, seconds=1.0, tokens=256, samples=8, loss=5.0),)
LINE = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize("good", [
    evidence(),
    evidence(wall_s=None, device=None, world_size=None),
    evidence(steps(6), completed=None, cut_off="declared", recipe=CUT),
    evidence(steps(6), completed=None, cut_off=LINE, recipe=CUT),
    evidence(cut_off=LINE),  # it did all its work before
    evidence((*steps(60)[:5], *steps(60)[6:]), recipe={"steps": 60}, wall_s=60.0, **UNREAD, unread_after={5: 1}),
    evidence((), totals={"throughput": 1.0}),
    evidence(steps(12, 12), log_interval=12),
    evidence(steps(12, 4), log_interval=8),  # more often than its interval
    evidence((*FIRST, *steps(12, 4)), first_apart=True),
    evidence((*FIRST, *steps(12, 12)), first_apart=True, log_interval=12),
    evidence(steps(10, 5)),  # the two steps after the last line of a log interval have none
    evidence(failure="ValueError: handled"),
    evidence(steps(tokens=None, samples=None, loss=None)),
])  # fmt: skip
def test_a_good_run_passes(good: Evidence) -> None:
    assert first_problem(good) is None


@pytest.mark.parametrize(("bad", "kind", "said"), [
    (evidence(restarted="log:9: step 1 after step 3"), "restarted", "log:9: step 1 after step 3"),
    (evidence(completed=None), "no_evidence_of_completion", "after step 12 and nothing proves"),
    (evidence((), completed=None, failure="ValueError: x"), "no_evidence_of_completion",
     "without a single step and nothing proves that the run did all its work (the line `done`); it said: Value"),
    (evidence(steps(6), completed=None, recipe=CUT), "no_evidence_of_completion", "after step 6"),
    (evidence(steps(6), completed=None, cut_off=LINE), "time_limit", "cut off after step 6 of 12, before"),
    (evidence((), completed=None, cut_off="limit"), "time_limit", "cut off without a single step of 12"),
    (evidence((), completed=None, cut_off="limit", recipe=CUT), "steps_missing", "neither a step"),
    (evidence(()), "steps_missing", "neither a step"),
    (evidence(device="NVIDIA H200"), "wrong_hardware", "the system file has"),
    (evidence(world_size=4), "wrong_ranks", "its log reports 4 ranks; the run should have 2"),
    (evidence(unreadable=("a.log:6: cut",), unread=2), "unreadable_log", "2 lines that look like steps"),
    (evidence(**UNREAD), "unreadable_log", "1 line that looks like a step"),
    (evidence(steps(49), recipe={"steps": 49}, **UNREAD), "unreadable_log", "1 line that looks like a step"),
    (evidence((), **UNREAD, totals={"throughput": 1.0}), "unreadable_log", "1 line that looks like a step"),
    (evidence((*steps(60)[:5], *steps(60)[6:]), recipe={"steps": 60}, **UNREAD, unread_after={9: 1}), "steps_missing",
     "1 lines are missing, first that of step 6"),
    (evidence((*steps()[:5], *steps()[6:])), "steps_missing", "11 steps, every 1 of them, up to step 12 of 12; 1"),
    (evidence(without(6)), "steps_missing", "5 steps, every 2 of them, up to step 12 of 12; 1 lines are missing"),
    (evidence(without(2)), "steps_missing", "first that of step 2"),
    (evidence(without(2, 6)), "steps_missing", "2 lines are missing, first that of step 2"),
    (evidence(steps(12, 4), log_interval=2), "steps_missing", "3 lines are missing, first that of step 2"),
    (evidence(steps()[-1:]), "steps_missing", "only that of step 12 is there, and others may be missing"),
    (evidence((*FIRST, *steps()[-1:]), first_apart=True), "steps_missing", "only that of step 12 is there"),
    (evidence(steps(12, 4), first_apart=True), "steps_missing", "1 lines are missing, first that of step 1"),
    (evidence((*steps(8, 2), Step(step=11, seconds=1.0))), "steps_missing", "every 1 of them"),
    (evidence(steps(6)), "steps_missing", "6 steps, every 1 of them, up to step 6 of 12; 6"),
    (evidence(steps(5, 5), log_interval=5), "steps_missing", "1 steps, every 5 of them, up to step 5 of 12; 1"),
    (evidence(steps()[4:]), "steps_missing", "; 4 lines are missing, first that of step 1"),
    (evidence(steps(6), short="it made 6 steps of 12"), "steps_missing", "it made 6 steps of 12"),
    (evidence(steps(15)), "wrong_work", "its log goes on to step 15; the recipe ends at step 12"),
    (evidence(steps(tokens=255)), "wrong_work", "step 12 counted 255 tokens in 8 sequences"),
    (evidence(steps(samples=4, tokens=None)), "wrong_work", "step 12 counted None tokens in 4 sequences"),
    (evidence(steps(loss=math.nan)), "not_finite", "loss is nan at step 12"),
    (evidence(steps(grad_norm=math.inf)), "not_finite", "grad norm is inf at step 12"),
    (evidence(tuple(s.model_copy(update={"loss": s.step / 10}) for s in steps())), "loss_rises", "the loss rose"),
    (evidence(wall_s=6.0), "implausible", "the steps add up to 12 s, but the run took 6 s"),
    (evidence(steps(seconds=0.0)), "implausible", "step 12 took 0 s"),
    (evidence(doubts=("it says two things",)), "implausible", "it says two things"),
])  # fmt: skip
def test_what_is_wrong_is_named(bad: Evidence, kind: str, said: str) -> None:
    problem = known(first_problem(bad))
    assert problem.kind == kind
    assert said in problem.message


def test_processes_that_end_badly_after_the_work_are_told_of() -> None:
    """The number is whole; before the work is done they are an error, which quotes them."""
    ends = ("exits with return code = -6", "exits with return code = -11")
    good = evidence(bad_ends=ends)
    assert first_problem(good) is None
    assert any(
        "ended with an error, although the work was done: exits with return code = -6" in f for f in findings(good)
    )
    half = evidence(bad_ends=ends, completed=None, failure=ends[0])
    problem = known(first_problem(half))
    assert problem.kind == "no_evidence_of_completion"
    assert "it said: exits with return code = -6" in problem.message
    assert not any("ended with an error" in finding for finding in findings(half))


@given(st.integers(1, 5), st.integers(2, 20), st.floats(0.1, 100))
def test_a_step_that_two_lines_are_about_counts_once(every: int, lines: int, seconds: float) -> None:
    """The first step may have a line of its own beside the mean that it is part of."""
    last = every * lines
    first = Step(step=1, interval=1, seconds=seconds, loss=5.0)
    means = [Step(step=n, interval=every, seconds=seconds, loss=4 - n / 1e6) for n in range(every, last + 1, every)]
    logged = (first, *means) if every > 1 else (first, means[1].model_copy(update={"interval": 2}), *means[2:])
    run: dict[str, Any] = {
        "recipe": {"steps": last, "warm_up": {"steps": 1}}, "first_apart": True, "log_interval": every,
    }  # fmt: skip
    took = last * seconds
    assert first_problem(evidence(logged, **run, wall_s=took)) is None
    problem = first_problem(evidence(logged, **run, wall_s=max(took - 5.1, took * 0.99 - 5.0)))
    assert took <= 5.0 or problem is not None
    if problem is not None:
        added = float(problem.message.partition("the steps add up to ")[2].split()[0])
        assert added == pytest.approx(took, rel=1e-3)


@pytest.mark.parametrize(("changes", "told"), [
    ({"loss": 5.0}, "its loss is 5 in all 12 steps"),
    ({"grad_norm": 0.0}, "its gradient norm is 0 in 12 of 12 steps"),
])  # fmt: skip
def test_a_log_in_which_nothing_moves_is_no_training(changes: dict[str, float], told: str) -> None:
    """The very same loss in all steps, or gradients of nothing, are of no training, however fast."""
    lines = tuple(step.model_copy(update=changes) for step in steps())
    problem = known(first_problem(evidence(lines)))
    assert (problem.kind, told in problem.message) == ("no_training", True)
    few = tuple(step.model_copy(update=changes) if step.step < 3 else step for step in lines)
    moved = tuple(s.model_copy(update={"loss": 5.0 - s.step / 100}) if s.step > 2 else s for s in few)
    assert first_problem(evidence(tuple(s.model_copy(update={"grad_norm": 1.0}) for s in moved))) is None


@pytest.mark.parametrize(("moving", "told"), [(1, "its loss is 4.5 in 39 of 40 steps, one after the other"), (25, "")])
def test_a_loss_that_stands_still_from_some_step_on_is_no_training(moving: int, told: str) -> None:
    problem = first_problem(curve([*FALLING[:moving], *[4.5 if told else FALLING[moving]] * (40 - moving)]))
    assert (problem.message if problem else "").startswith(told)
    assert problem is None or problem.kind == "no_training"


def curve(
    losses: Sequence[float], norms: Sequence[float] = (), kind: Literal["ranks", "command"] = "command"
) -> Evidence:
    lines = tuple(
        Step(step=n, seconds=1.0, loss=loss, grad_norm=norm)
        for n, (loss, norm) in enumerate(zip_longest(losses, norms, fillvalue=4.5), start=1)
    )
    return evidence(lines, recipe={"steps": len(lines)}, kind=kind, wall_s=None)


FALLING = [5 - n / 20 for n in range(40)]


@pytest.mark.parametrize(("losses", "norms", "told"), [
    (FALLING, [3.0] * 40, ""),
    (FALLING, [180.0, 207.0, *[5.0] * 38], ""),  # as JSC's 175B begins
    (FALLING, [0.3 + n / 10 for n in range(40)], ""),  # while the learning rate rises
    ([*FALLING[:20], 7.5, *FALLING[20:39]], [*[1.0] * 20, 500.0, *[1.0] * 19], ""),  # a spike that passes
    ([*FALLING[:9], *[40.0] * 10, *FALLING[19:]], [1.0] * 40, "the loss is 40 at step 10"),
    (FALLING, [*[1.0] * 9, 1e9, *[1.0] * 30], "the gradient norm rose from 1 to 1e+09 at step 10"),
    (FALLING, [10 ** (n / 6.5) for n in range(40)], "the gradient norm rose from 1 to 1e+04 at step 27"),
    (FALLING, [1 + 25e3 * n for n in range(40)], "the gradient norm rose from 1 to 2.5e+04 at step 2"),
    (FALLING, [*[1.0] * 25, *[300.0] * 15], "from 1 to 300 (medians of a quarter)"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["ranks", "command"])
def test_losses_and_gradients_are_looked_at_as_curves(
    losses: list[float], norms: list[float], told: str, kind: Literal["ranks", "command"]
) -> None:
    problems = list(check_divergence(curve(losses, norms, kind)))
    assert bool(problems) == bool(told)
    assert all(problem.kind == "loss_rises" for problem in problems)
    assert told in "; ".join(problem.message for problem in problems)
