"""When Slurm's controller is asked."""

import itertools

from pytest_llmbench.cluster.slurm.controller import Rhythm


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def queries(seconds: int, *, changed: bool, stirred: bool, last: bool = False) -> list[float]:
    clock = Clock()
    rhythm, asked = Rhythm(clock), []
    for tick in range(10 * seconds):
        clock.now = 1000.0 + tick / 10
        if stirred:
            rhythm.stir(last=last)
        if rhythm.due(last=last):
            asked.append(clock.now - 1000.0)
            rhythm.note_answer(changed=changed, last=last, took_s=0.0)
    return asked


def test_an_hour_of_events_costs_six_queries_a_minute() -> None:
    for last in (False, True):
        asked = queries(3600, changed=True, stirred=True, last=last)
        assert 360 <= len(asked) <= 360 + 9
        assert len([when for when in asked if when >= 60]) <= 6 * 59 + 1


def test_it_is_quiet_where_nothing_changes() -> None:
    asked = queries(120, changed=False, stirred=False)
    pauses = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert pauses[:4] == [4, 8, 10, 10]


def test_one_query_serves_the_events_of_a_moment() -> None:
    clock = Clock()
    rhythm = Rhythm(clock)
    rhythm.note_answer(changed=False, last=False, took_s=0.0)
    for last, pause_s in ((False, 2.0), (True, 0.25)):
        rhythm.note_answer(changed=False, last=False, took_s=0.0)
        rhythm.stir(last=last)
        assert rhythm.next - clock.now == pause_s
        clock.now += 0.1
        rhythm.stir(last=last)
        assert rhythm.next - clock.now < pause_s


def test_an_answer_that_took_long_is_not_asked_for_again_at_once() -> None:
    clock = Clock()
    rhythm = Rhythm(clock)
    rhythm.note_answer(changed=True, last=True, took_s=30.0)
    assert rhythm.next == clock.now + 30.0
