"""One look of the runner."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.session.following import Ended
from pytest_llmbench.session.runner import Runner


def test_nodes_of_a_run_that_ended_are_used_at_once() -> None:
    """A look that finds the end of a run launches the next one: the node would stand idle until the next look."""
    waiting, under_way, launched = deque("bc"), ["a"], []

    def launch_what_fits() -> None:
        if waiting and not under_way:
            under_way.append(waiting.popleft())
            launched.append(under_way[0])

    runner = cast("Any", Runner.__new__(Runner))
    runner._take_on_repeats = runner._show = lambda: None
    runner._to_look_at = list
    runner._nodes = SimpleNamespace(ready=lambda: True)
    runner._follower = SimpleNamespace(look_after=lambda _: Ended(never_began="it ended"))
    runner._take_end = lambda active, _: under_way.remove(active)
    runner._schedule = SimpleNamespace(
        take_launched=lambda _: None, active=under_way, launch_what_fits=launch_what_fits
    )
    runner._tick()
    assert launched == ["b"]
    runner._tick()
    assert launched == ["b", "c"]


def test_every_run_that_waits_for_slurm_is_looked_at() -> None:
    runner = cast("Any", Runner.__new__(Runner))
    runs = [
        SimpleNamespace(
            run=SimpleNamespace(key=f"run{number}"),
            job=SlurmJob.__new__(SlurmJob),
            watch="begun" if number > 990 else None,
        )
        for number in range(1000)
    ]
    looks = [{each.run.key for each in runner._to_look_at(runs)} for _ in range(10)]
    assert set.union(*looks) == {each.run.key for each in runs}
    assert set.intersection(*looks) == {each.run.key for each in (*runs[:64], *runs[991:])}
    assert max(map(len, looks)) < 300
