"""The reader of step logs: what counts, what is reported, and that nothing makes it fail."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.readers.steps.step_log import read_steps
from tests.conftest import known


def start(rank: int = 0, **changes: object) -> bytes:
    event = {
        "event": "start", "schema": 1, "rank": rank, "world_size": 2, "local_rank": rank, "host": f"n{rank}",
        "pid": 7, "device": "NVIDIA H200", "versions": {"torch": "2.13.0"}, "pid_namespace": 1, "time": 1.7e9,
    }  # fmt: skip
    return line(event | changes)


def step(number: int, **changes: object) -> bytes:
    event = {
        "event": "step", "step": number, "seconds": 0.5 + number / 64, "tokens": 64, "samples": 2,
        "loss": 2.0, "grad_norm": 1.0, "peak_memory_bytes": 1024, "time": 1.7e9, "logged": 1.7e9,
    }  # fmt: skip
    return line(event | changes)


def line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


END = line({"event": "end", "steps": 3, "time": 1.7e9})
LOG = start() + line({"event": "matmul", "flops_per_s": 1e12}) + step(1) + step(2) + step(3) + END

Read = Callable[..., StepSeries]


@contextmanager
def reader() -> Iterator[Read]:
    """Offer a function that reads the given bytes as the logs of rank 0, rank 1, ..."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "steps").mkdir()

        def run(*logs: bytes) -> StepSeries:
            for rank, log in enumerate(logs):
                (folder / f"steps/rank-{rank:05d}.jsonl").write_bytes(log)
            return read_steps(folder)

        yield run


@pytest.fixture
def read() -> Iterator[Read]:
    with reader() as run:
        yield run


def numbers(series: StepSeries) -> list[int]:
    return [step.step for step in series.steps]


def test_ranks_are_combined_step_by_step(read: Read) -> None:
    """The first step takes as long as its slowest rank; work adds up, losses are averaged, peaks are the highest."""
    one = step(1, seconds=1, tokens=10, samples=1, loss=2, grad_norm=3.0, peak_memory_bytes=None)
    other = step(1, seconds=2.5, tokens=20, samples=3, loss=3.0, grad_norm=4.0, peak_memory_bytes=9)
    (combined,) = read(start() + one, start(1) + other).steps
    assert combined.model_dump() == {
        "step": 1, "seconds": 2.5, "tokens": 30, "samples": 4, "loss": 2.5, "grad_norm": 4.0,
        "peak_memory_bytes": 9, "ranks": 2, "interval": 1, "reported": {}, "at": None, "paused": False,
    }  # fmt: skip


def test_steps_add_up_to_the_wall_clock_of_the_last_rank(read: Read) -> None:
    """What one rank is late in a step, another waits for in the next: it is not counted twice."""
    late = step(1, seconds=1.0) + step(2, seconds=1.5) + step(3, seconds=1.0)
    waits = step(1, seconds=1.0) + step(2, seconds=1.0) + step(3, seconds=1.5)
    seconds = [known(each.seconds) for each in read(start() + late, start(1) + waits).steps]
    assert seconds == pytest.approx([1.0, 1.5, 1.0])


@given(st.lists(st.tuples(*[st.floats(1e-3, 1e3)] * 3), min_size=1, max_size=9))
def test_no_rank_ends_after_the_sum_of_steps(seconds: list[tuple[float, ...]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "steps").mkdir()
        for rank in range(3):
            lines = (step(number, seconds=each[rank]) for number, each in enumerate(seconds, start=1))
            (folder / "steps" / f"rank-{rank:05d}.jsonl").write_bytes(b"".join(lines))
        steps = [known(each.seconds) for each in read_steps(folder).steps]
    assert min(steps) > 0.0
    longest = max(sum(each[rank] for each in seconds) for rank in range(3))
    assert sum(steps) == pytest.approx(longest, rel=1e-9)


def test_a_rank_is_read_as_it_introduced_itself(read: Read) -> None:
    failed = start(1) + line({"event": "failure", "error": "RuntimeError: no", "time": 1.5})
    first, second = read(LOG, failed).ranks
    assert (first.rank, first.host, first.device, first.versions) == (0, "n0", "NVIDIA H200", {"torch": "2.13.0"})
    assert (first.matmul_flops_per_s, first.ended, first.failure) == (1e12, True, None)
    assert (second.ended, second.failure, second.failed_at) == (False, "RuntimeError: no", 1.5)


def test_a_step_that_one_rank_lacks_is_told_by_its_ranks(read: Read) -> None:
    """A lost step of one rank stays visible as a step that only the other logged."""
    series = read(LOG, start(1) + step(1) + step(3) + END)
    assert [(step.step, step.ranks) for step in series.steps] == [(1, 2), (2, 1), (3, 2)]
    assert series.unreadable == ()


@pytest.mark.parametrize("ranks", [("nan", 1.0), (1.0, "nan")])
def test_one_bad_rank_is_not_averaged_away(read: Read, ranks: tuple[object, object]) -> None:
    """A NaN of any rank, first or last, makes loss and gradient norm of the step NaN."""
    (combined,) = read(*(step(1, loss=value, grad_norm=value) for value in ranks)).steps
    assert math.isnan(known(combined.loss))
    assert math.isnan(known(combined.grad_norm))


def test_infinities_keep_their_sign(read: Read) -> None:
    (combined,) = read(step(1, loss="-inf", grad_norm="inf")).steps
    assert (combined.loss, combined.grad_norm) == (-math.inf, math.inf)


WRONG_VALUES: list[dict[str, Any]] = [
    {"seconds": 0}, {"seconds": -1.0}, {"seconds": "1.0"}, {"seconds": True}, {"seconds": None}, {"seconds": "inf"},
    {"step": 0}, {"step": 1.0}, {"step": True}, {"step": "1"}, {"tokens": 64.0}, {"tokens": -64}, {"tokens": 2**63},
    {"samples": -1}, {"samples": False}, {"loss": None}, {"loss": "NaN"}, {"loss": "2.0"}, {"loss": [2.0]},
    {"grad_norm": True}, {"peak_memory_bytes": 0.5}, {"peak_memory_bytes": -1}, {"time": "now"}, {"event": "steps"},
    {"event": None}, {"surprise": 1},
]  # fmt: skip
NO_EVENTS = [
    b"\n", b"null\n", b"[1]\n", b"\xff\xfe\n", b"\x00\n", step(1)[:-9] + b"\n", step(1).replace(b"2.0", b"NaN"),
    step(1).replace(b"2.0", b"1e999"), step(1).replace(b"2.0", b"Infinity"),
    step(1).replace(b'"loss"', b'"lo\xffss"'), step(1).strip() + step(1), b"[" * 50_000 + b"\n",
    b"1" * 60_000 + b"\n", b"x" * 200_000 + b"\n", step(1).strip() + b" " * 70_000 + b"\n",
]  # fmt: skip


@pytest.mark.parametrize(
    "bad", [*(step(1, **changes) for changes in WRONG_VALUES), *NO_EVENTS],
    ids=[*map(str, WRONG_VALUES), *map(str, range(len(NO_EVENTS)))],
)  # fmt: skip
def test_a_line_that_is_no_event_never_counts(read: Read, bad: bytes) -> None:
    """Bytes that are not one event of ours are one unreadable line, however long; the rest is read."""
    series = read(start() + bad + step(2))
    assert numbers(series) == [2]
    (report,) = series.unreadable
    assert report.startswith("rank-00000.jsonl:2: ")
    assert len(report) < 300


@pytest.mark.parametrize(("key", "other"), [("tokens", b"512"), ("loss", b"0.5"), ("step", b"7")])
def test_a_line_that_has_a_key_twice_never_counts(read: Read, key: str, other: bytes) -> None:
    """Either value may be the damage, so the line has none."""
    name = f'"{key}":'.encode()
    series = read(start() + step(1) + step(2).replace(name, name + other + b"," + name, 1) + step(3))
    assert numbers(series) == [1, 3]
    (report,) = series.unreadable
    assert report == f"rank-00000.jsonl:3: key '{key}' is given twice"


def test_a_step_out_of_order_or_twice_never_counts(read: Read) -> None:
    series = read(start() + step(2, loss=1.0) + step(2, loss=9.0) + step(1) + step(3))
    assert numbers(series) == [2, 3]
    assert series.steps[0].loss == 1.0
    assert series.unreadable == ("rank-00000.jsonl:3: step 2 after step 2", "rank-00000.jsonl:4: step 1 after step 2")


def test_a_rank_in_the_wrong_file_or_twice_is_reported(read: Read) -> None:
    series = read(start(1), start(1) + start(1, host="elsewhere"))
    assert [(info.rank, info.host) for info in series.ranks] == [(1, "n1")]
    assert series.unreadable == ("rank-00000.jsonl:1: start of rank 1", "rank-00001.jsonl:2: second start")


def test_a_failure_before_the_start_is_reported(read: Read) -> None:
    series = read(line({"event": "failure", "error": "RunError: no GPU", "time": 1.0}))
    assert series.ranks == ()
    assert series.unreadable == ("rank-00000.jsonl:1: no start of this rank, which failed: RunError: no GPU",)


def test_a_file_of_garbage_is_told_in_few_lines(read: Read) -> None:
    series = read(b"garbage\n" * 1000)
    assert len(series.unreadable) == 21
    assert series.unreadable[-1] == "rank-00000.jsonl:1000: 980 more unreadable lines up to here"


def test_other_files_are_no_ranks(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    arabic = "rank-\N{ARABIC-INDIC DIGIT ONE}0000.jsonl"
    for name in ("rank-0.jsonl", "rank-000001.jsonl", "rank-00000.jsonl.swp", arabic, "notes"):
        (steps / name).write_bytes(LOG)
    (steps / "rank-00002.jsonl").mkdir()
    (steps / "rank-123456.jsonl").write_bytes(step(1))
    series = read_steps(tmp_path)
    assert [(step.step, step.ranks) for step in series.steps] == [(1, 1)]
    assert series.unreadable == ("rank-00002.jsonl:0: cannot be read on: Is a directory",)
    assert series.restarted is not None
    assert series.restarted.startswith("notes:1:")


@given(st.integers(0, len(LOG)))
def test_a_truncated_log_holds_only_steps_of_the_whole_one(length: int) -> None:
    with reader() as run:
        whole = run(LOG).steps
        cut = run(LOG[:length])
    assert cut.steps == whole[: len(cut.steps)]
    assert bool(cut.unreadable) == (length > 0 and not LOG[:length].endswith(b"\n"))


_LINES = LOG.splitlines(keepends=True)
_GARBAGE = st.one_of(
    st.binary(max_size=80).map(lambda raw: raw.replace(b"\n", b"") + b"\n"),
    st.builds(lambda at: step(2)[:at] + b"\n", st.integers(0, len(step(2)) - 2)),
    st.builds(lambda value: step(3, seconds=value), st.sampled_from([-1, "1", None, True, [], {}])),
)


@given(st.lists(st.tuples(st.integers(0, len(_LINES)), _GARBAGE), max_size=8))
def test_garbage_between_lines_changes_no_number(garbage: list[tuple[int, bytes]]) -> None:
    lines = list(_LINES)
    for place, bad in sorted(garbage, key=lambda item: item[0], reverse=True):
        lines.insert(place, bad)
    with reader() as run:
        clean = run(LOG)
        soiled = run(b"".join(lines))
    assert (soiled.steps, soiled.ranks) == (clean.steps, clean.ranks)
    assert len(soiled.unreadable) == len(garbage)


@pytest.mark.parametrize("seconds", [30.0, 1e300])
def test_no_duration_excuses_itself(read: Read, seconds: float) -> None:
    steps = [step(n, seconds=1.0, time=1.7e9 + n, loss=5 - n / 10, grad_norm=1 + n / 10) for n in range(1, 9)]
    (rank,) = read(b"".join([start(), *steps, END])).ranks
    assert rank.steps is not None
    assert rank.steps.unlike_times is None
    steps[4] = step(5, seconds=seconds, time=1.7e9 + 5, loss=4.5, grad_norm=1.5)
    (rank,) = read(b"".join([start(), *steps, END])).ranks
    assert rank.steps is not None
    assert f"step 5 took {seconds:.4g} s and ended 1 s after" in (rank.steps.unlike_times or "")
