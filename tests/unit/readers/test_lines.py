"""Lines are what the framework wrote, whatever carried them."""

import gzip
import os
import tracemalloc
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers import lines
from pytest_llmbench.readers.lines import Line, last_lines, pieces, read_lines, split_prefix


def lines_of(folder: Path, content: bytes) -> list[Line]:
    path = folder / "job.out"
    path.write_bytes(content)
    return list(read_lines(path))


@pytest.mark.parametrize(("prefix", "text"), [
    ("", "iteration 1"), ("", "    indented"), ("[default3]:", " iteration"), ("[trainer0]:", "x"),
    ("[rank0]: ", "RuntimeError: NCCL error in: x"), ("0: ", "iteration"), ("  13: ", "  iteration"),
    ("[1,0]<stdout>:", "x"), ("[prterun-node1-77@1,12]<stderr>: ", "x"), ("vm-07-14: ", "Epoch: 0, Step: 1"),
    ("10.0.0.7: ", "x"), ("node1.cluster.example: ", "x"), ("DGX-A100-3: ", "x"), ("localhost: ", "x"),
    ("titan: ", "x"), ("node1: 0: [default3]:[rank3]: ", "x"),
    ("i.finetune/0 ", "Training epoch 0, iteration 0/99"),
    ("ining-demo/0 [default0]:", "Training epoch 0, iteration 0/99"), ("mbs_128gbs/12 ", "x"),
    ("(RayTrainWorker pid=4711) ", "x"), ("(RayTrainWorker pid=4711, ip=10.0.0.7) ", "x"), ("(pid=4711) ", "x"),
    ("(train, pid=4711) ", "x"), ("(worker1, rank=1, pid=4711, ip=10.0.0.7) [default0]:", "x"),
])  # fmt: skip
def test_prefixes(prefix: str, text: str) -> None:
    """What launchers put before a line is taken off, several of them at once, and tells the source."""
    assert split_prefix(prefix + text) == (prefix.strip(), text)


@pytest.mark.parametrize("text", [
    "Throughput: 943.4550 samples/sec", "Epoch: 0, Step: 10, Rank: 0, loss = 1.0", "ppl: 29.2, loss: 3.4",
    "loss: 3", "RuntimeError: CUDA error", "torch.OutOfMemoryError: CUDA out of memory.",
    "urllib3.exceptions.MaxRetryError: refused", "srun: error: node1: task 3: Killed",
    "slurmstepd: error: *** STEP 3.0 ON node1 CANCELLED AT 2026-11-21T08:00:00 DUE TO TIME LIMIT ***",
    "2026-11-21 02:58:47 | INFO | train_inner | {}", "[2026-11-21 02:58:47] iteration",
    "[Rank 0] (after 1 iterations)", "[after training is done] datetime: 2026",
    "BEGIN_TRAINING: Mon Nov 16 10:06:25 UTC 2026", "INFO:megatron.core.timers:(min, max)",
    "vm:123:456 [0] NCCL INFO", "3/10 [00:31<00:00,  1.27it/s]", "16/16 processes", "(after 10 iterations) memory",
    "(min, max) time across ranks (ms):",
])  # fmt: skip
def test_what_looks_like_a_prefix(text: str) -> None:
    assert split_prefix(text) == ("", text)


@pytest.mark.parametrize(
    "stamp", ["[2025-11-20T14:55:23+08:00] ", "2025-11-20T14:55:23.123456789Z ", "[2025-11-20T14:55:23,123]: "]
)
def test_a_time_before_each_line_tells_no_rank_apart(stamp: str) -> None:
    assert split_prefix(f"{stamp}iteration 1") == ("", "iteration 1")
    assert split_prefix(f"{stamp}3: [default0]: x") == ("3: [default0]:", " x")
    assert split_prefix(f"node1: {stamp}3: x") == ("node1: 3:", "x")


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@given(content=st.lists(
    st.sampled_from([b"iteration", b"it", b"x" * 30, b"\n", b"\r", b"\0", b"3: ", b"err"]),
), needles=st.lists(st.sampled_from([b"iteration", b"err", b"none", b"x"]), min_size=1))  # fmt: skip
def test_only_the_lines_that_hold_a_needle(block: int, content: list[bytes], needles: list[bytes]) -> None:
    data = b"".join(content)
    with mock.patch.object(lines, "_BLOCK", block):
        every, some = list(pieces(BytesIO(data))), list(pieces(BytesIO(data), lambda: needles))
    assert every == list(pieces(BytesIO(data)))
    due = [line for line in every if any(needle in line[0] for needle in needles)]
    assert [line for line in some if line[3]] == [line for line in due if line[3]]
    places = [line[2] for line in every]
    assert places == sorted(set(places))
    assert b"\n".join(line[0] for line in every).replace(b"\n", b"") == data.replace(b"\n", b"").replace(b"\r", b"")


@pytest.mark.parametrize("needles", [(), (b"iteration",)])
def test_a_line_without_end_takes_no_memory(tmp_path: Path, needles: tuple[bytes, ...]) -> None:
    path = tmp_path / "job.out"
    with path.open("wb") as file:
        file.write(b"iteration 1\niteration 2 of a line that goes on")
        file.truncate(1 << 29)
        file.seek(0, os.SEEK_END)
        file.write(b"\niteration 3\n")
    tracemalloc.start()
    found = [(line.text[:11], line.number, line.whole) for line in read_lines(path, lambda: needles)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [("iteration 1", 1, True), ("iteration 2", 2, False), ("iteration 3", 3, True)]
    assert most < 16 << 20


def test_ends_of_lines(tmp_path: Path) -> None:
    """A line feed, a carriage return or both end a line; only line feeds count; the last may lack its end."""
    lines = lines_of(tmp_path, b"a\nb\r\n10%\r 20%\r\n\nlast")
    assert [(line.text, line.number, line.whole) for line in lines if line.text] == [
        ("a", 1, True), ("b", 2, True), ("10%", 3, True), (" 20%", 3, True), ("last", 5, False),
    ]  # fmt: skip
    assert {line.file for line in lines} == {"job.out"}


def test_colours(tmp_path: Path) -> None:
    colourful = b"\x1b[32m[def\x1b[0mault1]:\x1b[2K\x1b[1;31mite\x1b[0mration\x1b]0;title\x07 1\x1bM\n"
    (line,) = lines_of(tmp_path, colourful)
    assert (line.source, line.text) == ("[default1]:", "iteration 1")


def test_a_hole(tmp_path: Path) -> None:
    """A log that is truncated while it is written begins with zeros up to where the writer was."""
    first, second = lines_of(tmp_path, b"\0" * 5000 + b"[default1]:iteration\n1\x002\n")
    assert (first.source, first.text) == ("[default1]:", "iteration")
    assert second.text == "1\x002"  # no number was here
    assert (first.whole, second.whole) == (True, False)


@pytest.mark.parametrize("length", [65535, 65536, 65537, 131072, 131073, 300000])
def test_too_long_lines(tmp_path: Path, length: int) -> None:
    """Of a line beyond 64 KiB the beginning is left and it is not whole; the next one is not affected."""
    long, after = lines_of(tmp_path, b"x" * length + b"\nafter\n")
    assert long.text == "x" * min(length, 65536)
    assert long.whole == (length <= 65536)
    assert (after.text, after.number, after.whole) == ("after", 2, True)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none")) == []
    assert list(read_lines(tmp_path)) == []
    assert last_lines(tmp_path / "none") == []


def test_last_lines(tmp_path: Path) -> None:
    """The end of a long file, without the line that it begins in; of a short one all of it."""
    path = tmp_path / "job.out"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(20000)) + b"cut")
    lines = last_lines(path)
    assert lines[-2:] == [
        Line(text="line 19999", source="", file="job.out", number=lines[-2].number, place=lines[-2].place, whole=True),
        Line(text="cut", source="", file="job.out", number=lines[-1].number, place=lines[-1].place, whole=False),
    ]
    assert all(line.text.startswith("line 1") for line in lines[:-1])
    path.write_bytes(b"one\ntwo\n")
    assert [line.text for line in last_lines(path)] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "packed"),
    [(gzip.compress(b"iteration"), True), ("iteration 1\n".encode("utf-16"), True), (b"iteration 1\n", False)],
)
def test_what_has_no_lines_to_read(tmp_path: Path, content: bytes, *, packed: bool) -> None:
    (tmp_path / "job.out").write_bytes(content)
    assert lines.is_packed(tmp_path / "job.out") is packed
    assert not lines.is_packed(tmp_path)
