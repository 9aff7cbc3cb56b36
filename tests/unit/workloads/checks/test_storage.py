"""What storage probes do on a node: files whose content is known, meetings, listings."""

import threading
from pathlib import Path

import pytest

from pytest_llmbench.checks.storage.nodes import storage
from pytest_llmbench.checks.storage.nodes.staging import listing
from pytest_llmbench.checks.storage.nodes.storage import BLOCK, Stream, read, write
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.file_barrier import FileBarrier
from pytest_llmbench.workloads.rank.probe import ProbeLog


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(path=tmp_path / "data-0", seed=1, blocks=3)
    write(made)
    return made


def test_what_was_written_is_read_back(stream: Stream) -> None:
    assert not read(stream)["wrong"]
    content = stream.path.read_bytes()
    assert len({content[i * BLOCK : (i + 1) * BLOCK] for i in range(3)}) == 3


def test_streams_are_timed_from_the_first_ones_begin_to_the_last_ones_end(
    context: RankContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other they take the time of both, although each was busy for half of it."""
    spans = iter([(10.0, 11.0), (11.0, 12.0)])

    def written(_: Stream) -> dict[str, object]:
        began, ended = next(spans)
        return {"began": began, "ended": ended, "direct": True}

    def reading(_: Stream) -> dict[str, object]:
        return {"began": 5.0, "ended": 5.5, "direct": True, "wrong": ""}

    monkeypatch.setattr(storage, "write", written)
    monkeypatch.setattr(storage, "read", reading)
    context.config.update(  # type: ignore[attr-defined]  # a dict, in this fixture
        {"folder": str(tmp_path), "name": "n", "streams": 2, "blocks": 1, "files": 1, "timeout_s": 5}
    )
    answer = storage.measure(context, ProbeLog(context))
    assert (answer.write_s, answer.read_s) == (2.0, 0.5)


def test_one_flipped_bit_and_the_blocks_of_another_file_are_found(stream: Stream, tmp_path: Path) -> None:
    content = bytearray(stream.path.read_bytes())
    content[BLOCK + 12345] ^= 1
    stream.path.write_bytes(content)
    assert read(stream)["wrong"] == f"data-0: 1 of 3 blocks differ, the first at byte {BLOCK + 12345:,}"
    other = Stream(path=tmp_path / "data-1", seed=2, blocks=3)
    write(other)
    stream.path.write_bytes(other.path.read_bytes())
    assert read(stream)["wrong"] == "data-0: 3 of 3 blocks differ, the first at byte 16"


def test_a_file_that_ends_early_is_an_error(stream: Stream) -> None:
    stream.path.write_bytes(stream.path.read_bytes()[:BLOCK])
    with pytest.raises(RunError, match="ends at byte") as caught:
        read(stream)
    assert caught.value.kind == "short_read"


def test_a_failed_step_leaves_nothing(context: RankContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Stream) -> dict[str, float]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write", full)
    context.config.update(  # type: ignore[attr-defined]  # a dict, in this fixture
        {"folder": str(tmp_path), "name": "n", "streams": 1, "blocks": 1, "files": 1, "timeout_s": 5}
    )
    with pytest.raises(OSError, match="No space left"):
        storage.measure(context, ProbeLog(context))
    assert not list(tmp_path.glob("llmbench-storage-*"))
    assert [path.name for path in (tmp_path / "meeting" / "left").iterdir()] == ["rank-00000"]


def test_those_who_meet_go_on_together(tmp_path: Path) -> None:
    came: list[int] = []
    passed: list[int] = []

    def rank(number: int) -> None:
        with FileBarrier(tmp_path, number, range(3), 20.0) as barrier:
            came.append(number)
            barrier.wait("here")
            passed.append(len(came))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == [3, 3, 3]


def test_nobody_waits_for_one_that_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileBarrier(tmp_path, 1, range(2), 60.0):
        raise ZeroDivisionError
    with pytest.raises(RunError, match="rank 00001 failed, and was waited for at `write`"):
        FileBarrier(tmp_path, 0, range(2), 60.0).wait("write")
    with pytest.raises(RunError, match="rank 00002 did not come to `write` within 0 s"):
        FileBarrier(tmp_path / "other", 0, (0, 2), 0.0).wait("write")


def test_a_listing_is_of_names_and_sizes_and_says_where_it_was_cut(tmp_path: Path) -> None:
    for folder, names in (("one", ("x", "y")), ("two", ("y", "x"))):
        for name in names:
            (tmp_path / folder / "deep").mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "deep" / name).write_bytes(b"12")
    (tmp_path / "data").symlink_to("one")
    first = listing(f"{tmp_path}/data", 10)
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to("two")
    assert listing(f"{tmp_path}/data", 10) == first
    assert (first.files, first.bytes, first.whole) == (2, 4, True)
    (tmp_path / "two" / "deep" / "x").write_bytes(b"123")
    assert listing(f"{tmp_path}/data", 10).digest != first.digest
    (tmp_path / "b.bin").symlink_to("nowhere")
    (tmp_path / "a.bin").write_bytes(b"1")
    cut = listing(f"{tmp_path}/*.bin", 1)
    assert (cut.files, cut.bytes, cut.whole) == (1, 1, False)
    assert listing(f"{tmp_path}/*.bin", 2).whole
    assert listing(f"{tmp_path}/none", 2).files == 0
