"""TensorBoard's event files: real ones of NeMo, and some made here, whole and damaged."""

import math
import statistics
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.engines.nemo.log import series
from pytest_llmbench.readers.tensorboard import Scalar, collect, event_files, masked_crc32c, records, scalars
from tests.support.events import part, record, simple, write

NEMO = "tensorboard/nemo2-gpt3-126m.events.out.tfevents.1726588615.75e4368fee5a.577.0"
TIMING = "train_step_timing in s"


def timings(first: int, *seconds: float) -> list[bytes]:
    return [record(first + index, {TIMING: simple(value)}) for index, value in enumerate(seconds)]


def test_a_file_that_was_given_a_name_of_its_own_is_found(tmp_path: Path) -> None:
    """Event files of several runs that are kept together have names in front; nothing else is taken for one."""
    write(tmp_path, *timings(0, 1.5, 2.5)).rename(tmp_path / "run7.events.out.tfevents.1700000000.host.1.0")
    (tmp_path / "tfevents.txt").write_text("notes\n")
    read = series(tmp_path)
    assert [step.seconds for step in read.steps] == [1.5, 2.5]
    assert read.unread == 0


def test_a_real_file_of_nemo(sample: Callable[[str], Path]) -> None:
    read = series(sample(NEMO))
    seconds = [step.seconds for step in read.steps if step.seconds is not None]
    assert [step.step for step in read.steps] == list(range(1, 26))
    assert [round(seconds[index], 6) for index in (0, 1, 24)] == [2.06377, 0.361486, 0.364594]
    assert round(statistics.mean(seconds[5:]), 4) == 0.3598
    last = read.steps[-1]
    assert (last.samples, last.reported["consumed_samples"], last.reported["global_step"]) == (16, 400.0, 24.0)
    assert last.loss == pytest.approx(8.967169)
    assert last.grad_norm == pytest.approx(2.434344)
    assert (read.unread, read.restarted, read.completed) == (0, None, None)


def test_every_cut_of_a_real_file(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """The scalars before a cut within a record are there, the cut is said, and nothing is raised."""
    whole = sample(NEMO).read_bytes()
    ends = [0]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + 16 + struct.unpack_from("<Q", whole, ends[-1])[0])
    with sample(NEMO).open("rb") as file:
        everything = [list(scalars(data, {TIMING})) for data in records(file) if isinstance(data, bytes)]
    assert sum(map(len, everything)) == 25
    for cut in set(range(1, len(whole), 97)) - set(ends):
        path = write(tmp_path, whole[:cut])
        found = collect([path], {TIMING}, first=0)
        complete = sum(end <= cut for end in ends[1:])
        assert found.series(()).unreadable == (f"{path.name}:{complete + 1}: the file is cut off",)
        assert found.steps == {item.step + 1: {TIMING: item.value} for items in everything[:complete] for item in items}


def test_a_damaged_record_is_said_and_the_next_one_read(tmp_path: Path) -> None:
    first, second, third = timings(0, 1.0, 2.0, 3.0)
    wrong = second[:20] + bytes([second[20] ^ 1]) + second[21:]
    path = write(tmp_path, first, wrong, third)
    read = series(tmp_path)
    assert [(step.step, step.seconds) for step in read.steps] == [(1, 1.0), (3, 3.0)]
    assert (*read.unreadable, read.unread) == (f"{path.name}:2: its checksum is wrong", 1)


def test_a_number_has_its_record_step_and_time(tmp_path: Path) -> None:
    path = write(tmp_path, record(7, {"other": simple(9.0), TIMING: simple(0.25)}))
    with path.open("rb") as file:
        (data,) = records(file)
    assert isinstance(data, bytes)
    assert list(scalars(data, {TIMING})) == [Scalar(TIMING, 7, 0.25, 1_700_000_000.0)]


@pytest.mark.parametrize(
    "value",
    [b"", part(8, b"\x08\x07" + part(8, b"text")), part(8, b"\x08\x01" + part(5, struct.pack("<f", 1)))],
    ids=["nothing", "text", "tensor"],
)
def test_what_is_no_number(tmp_path: Path, value: bytes) -> None:
    path = write(tmp_path, record(7, {TIMING: value}))
    found = collect([path], {TIMING}, first=0)
    assert found.series(()).unreadable == (f"{path.name}:1: {TIMING} at step 7 is not a scalar of a step",)
    assert found.steps == {}
    assert collect([path], {"other"}, first=0).series(()).unread == 0


def test_a_step_before_the_first(tmp_path: Path) -> None:
    write(tmp_path, *timings(-1, 1.0))
    assert series(tmp_path).unread == 1


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """Files follow each other as they were begun; what both have the same is no restart."""
    write(tmp_path, *timings(2, 3.0, 4.0), begun=1_700_000_100)
    write(tmp_path, *timings(0, 1.0, 2.0, 3.0), begun=1_700_000_000)
    read = series(tmp_path)
    assert [step.seconds for step in read.steps] == [1.0, 2.0, 3.0, 4.0]
    assert read.restarted is None
    assert len(event_files(tmp_path)) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_second_run_is_named(tmp_path: Path, first: int) -> None:
    write(tmp_path, *timings(0, 1.0, 2.0), begun=1_700_000_000)
    second = write(tmp_path, *timings(first, 5.0, 6.0), begun=1_700_000_001)
    read = series(tmp_path)
    assert read.restarted is not None
    assert read.restarted.startswith(f"{second.name}:1: {TIMING} of step {first + 1} a second time")
    assert [step.seconds for step in read.steps][:2] == [1.0, 2.0]


def test_a_step_between_those_of_the_run_before(tmp_path: Path) -> None:
    """Logged every two steps, a run that began again at another one is a second run, too."""
    write(tmp_path, *(record(step, {TIMING: simple(1.0)}) for step in (1, 3, 5, 2)))
    assert series(tmp_path).restarted is not None


def test_both_names_of_the_time(tmp_path: Path) -> None:
    """If both are there they must be the same; where they are not, there is no step and it is said."""
    both = {"train_step_timing": simple(0.5), TIMING: simple(0.5)}
    path = write(tmp_path, record(0, both), record(1, {**both, TIMING: simple(0.6)}), record(2, {TIMING: simple(0.7)}))
    read = series(tmp_path)
    assert [(step.step, step.seconds) for step in read.steps] == [(1, 0.5), (3, pytest.approx(0.7))]
    assert read.unread == 1
    assert read.unreadable == (f"{path.name}:2: train_step_timing and {TIMING} of step 2 are not the same",)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    values = {"reduced_train_loss": simple(math.nan), "global_batch_size": simple(math.inf)}
    write(tmp_path, record(0, values), record(0, values))
    read = series(tmp_path)
    (step,) = read.steps
    assert step.loss is not None
    assert math.isnan(step.loss)
    assert (step.samples, step.seconds, read.restarted) == (None, None, None)


@pytest.mark.parametrize("logged", [(9, 19, 29), (109, 119)], ids=["from the start", "from the middle of a run"])
def test_steps_logged_every_so_often(tmp_path: Path, logged: tuple[int, ...]) -> None:
    write(tmp_path, *(record(step, {TIMING: simple(1.0)}) for step in logged))
    assert [(step.step, step.interval) for step in series(tmp_path).steps] == [(at + 1, 10) for at in logged]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """An empty folder has no steps; a missing file is said to be missing."""
    assert series(tmp_path).steps == ()
    assert series(tmp_path / "no-such").unreadable == ("no-such:1: cannot be read: No such file or directory",)
    assert "cannot be read" in series([tmp_path]).unreadable[0]


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, framed: bool) -> None:
    folder = tmp_path_factory.mktemp("events")
    length = struct.pack("<Q", len(data))
    frame = length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
    write(folder, frame if framed else data)
    read = series(folder)
    assert read.unread == len(read.unreadable) <= 1 + len(data)


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.integers(0, 2**40))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, values: list[float], first: int) -> None:
    path = write(tmp_path_factory.mktemp("events"), *timings(first, *values))
    found = collect([path], {TIMING}, first=0)
    assert [(repr(of_step[TIMING]), step) for step, of_step in found.steps.items()] == [
        (repr(value), first + index + 1) for index, value in enumerate(values)
    ]
