"""What waits for what on the streams of a GPU, which CPU ranks have none of: told by streams that keep record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from pytest_llmbench.engines.megatron_core.ranks import copies as module
from pytest_llmbench.engines.megatron_core.ranks.copies import Copies, Product

RANK, RANKS = 1, 4
PEERS = [2, 3, 0]


class Streams:
    """Stands in for `torch.cuda`. What is done is known to the stream that does it, and to those that waited for that.

    Attributes:
        known: of each thing that was done, in order, what was certain to be done before it.
    """

    def __init__(self) -> None:
        self.known: dict[str, frozenset[str]] = {}
        self._current = self.Stream()

    class Stream:
        """One of them: a sequence of what is done."""

        def __init__(self) -> None:
            self.past: frozenset[str] = frozenset()

        def wait_stream(self, other: Streams.Stream) -> None:
            """Know what another knows now."""
            self.past |= other.past

        def record_event(self) -> frozenset[str]:
            """What is known now."""
            return self.past

        def wait_event(self, event: frozenset[str]) -> None:
            """Know what was known then."""
            self.past |= event

    def current_stream(self) -> Streams.Stream:
        """Where things are done now."""
        return self._current

    @contextmanager
    def stream(self, other: Streams.Stream) -> Iterator[None]:
        """Do things there for a while."""
        before, self._current = self._current, other
        yield
        self._current = before

    def do(self, what: str) -> None:
        """Note what the current stream does, and what it knows."""
        assert what not in self.known
        self.known[what] = self._current.past
        self._current.past |= {what}


class Noting:
    """Stands in for `peer_memory.Symmetric`, of one rank alone."""

    made = 0

    def __init__(self, streams: Streams, size: int) -> None:
        self.rank, self.ranks, self._streams = RANK, RANKS, streams
        self._memory = torch.zeros(size)
        self._name, self._met = f"memory {Noting.made}", 0
        Noting.made += 1

    def part(self, rank: int, index: int) -> _Part:
        """See `peer_memory.Places`."""
        return _Part(self._streams, f"{self._name} of {rank}, part {index}")

    def whole(self) -> torch.Tensor:
        """See `peer_memory.Places`."""
        self._streams.do(f"{self._name} read, turn {self._met}")
        return self._memory

    def meet(self) -> None:
        """See `peer_memory.Places`."""
        self._met += 1
        self._streams.do(f"{self._name} met, turn {self._met}")


class _Part:
    """Stands in for a tensor, and notes what is copied to it."""

    def __init__(self, streams: Streams, name: str) -> None:
        self.streams, self.name = streams, name

    def copy_(self, _: object) -> None:
        """Note that, and nothing else."""
        turn = sum(done.startswith(f"copied to {self.name}") for done in self.streams.known)
        self.streams.do(f"copied to {self.name}, {turn}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Streams in place of a GPU's, and memory in place of its peers'."""
    found = Streams()
    monkeypatch.setattr(torch, "get_device_module", lambda _: found)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: RANKS)
    monkeypatch.setattr(module, "put", lambda _, place: found.do(f"put to {place.name}, {len(found.known)}"))
    monkeypatch.setattr(module, "_TILE", (1, 1))
    monkeypatch.setattr(Noting, "made", 0)
    return found


@pytest.fixture
def copies(streams: Streams) -> Copies:
    """What a rank of four has."""
    return Copies(None, lambda size, *_: Noting(streams, size))  # type: ignore[arg-type]


def product(streams: Streams) -> Product:
    """A product that notes which positions of 8 it makes, two of each rank."""
    ranks = {slice(2 * rank, 2 * rank + 2).start: rank for rank in range(RANKS)}
    return Product(columns=3, multiply=lambda _, which: streams.do(f"multiplied {ranks[which.start]}"))


def done(streams: Streams, prefix: str) -> str:
    """The one thing that was done whose name begins so."""
    [found] = [name for name in streams.known if name.startswith(prefix)]
    return found


def test_a_part_is_multiplied_when_it_has_come_and_not_later(streams: Streams, copies: Copies) -> None:
    """Copies wait for the meeting, a product for its own part; the first, for nothing."""
    copies.gather(torch.zeros(2, 1, 3), product(streams))()
    order = [name for name in streams.known if name.startswith("multiplied")]
    assert order == [f"multiplied {rank}" for rank in (RANK, *PEERS)]
    copied = {peer: done(streams, f"copied to memory 0 of {RANK}, part {peer}") for peer in PEERS}
    for number, peer in enumerate(PEERS):
        assert "memory 0 met, turn 1" in streams.known[copied[peer]]
        known = streams.known[f"multiplied {peer}"]
        assert [copied[each] in known for each in PEERS] == [place <= number for place in range(3)]
    assert not streams.known[f"multiplied {RANK}"] & set(copied.values())


def test_a_product_that_is_better_whole_waits_for_all_parts(
    streams: Streams, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where parts would take it longer."""
    monkeypatch.setattr(module, "_WORTH", 0.0)
    copies.gather(torch.zeros(2, 1, 3), Product(columns=3, multiply=lambda *_: streams.do("multiplied")))
    copied = {done(streams, f"copied to memory 0 of {RANK}, part {peer}") for peer in PEERS}
    assert copied <= streams.known["multiplied"]


def test_this_ranks_part_is_there_before_ranks_meet(streams: Streams, copies: Copies) -> None:
    """It is what peers copy."""
    copies.gather(torch.zeros(2, 1, 3))
    assert done(streams, f"put to memory 0 of {RANK}, part {RANK}") in streams.known["memory 0 met, turn 1"]


@pytest.mark.parametrize("waits", [True, False])
def test_ranks_meet_again_when_this_one_has_copied(streams: Streams, copies: Copies, waits: bool) -> None:
    """Whether what was gathered was waited for or not: after that meeting peers may write where it read."""
    first = copies.gather(torch.zeros(2, 1, 3))
    if waits:
        first()
    copies.gather(torch.zeros(2, 1, 3))
    copied = {done(streams, f"copied to memory 0 of {RANK}, part {peer}") for peer in PEERS}
    assert copied <= streams.known["memory 1 met, turn 1"]


def test_what_was_gathered_is_whole_when_waited_for(streams: Streams, copies: Copies) -> None:
    """The stream of the products knows all copies then."""
    wait = copies.gather(torch.zeros(2, 1, 3))
    copied = {done(streams, f"copied to memory 0 of {RANK}, part {peer}") for peer in PEERS}
    assert not copied & streams.current_stream().past
    wait()
    assert copied <= streams.current_stream().past


@pytest.mark.parametrize("in_parts", [True, False])
def test_a_summand_is_sent_when_it_is_made(
    streams: Streams, copies: Copies, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, each when it is there; ranks meet when all is sent, and what came is added up after that."""
    told = product(streams)
    if not in_parts:
        monkeypatch.setattr(module, "_WORTH", 0.0)
        told = Product(columns=3, multiply=lambda *_: streams.do("multiplied"))
    wait = copies.scatter(torch.zeros(8, 1, 3), told)
    sent = {peer: done(streams, f"copied to memory 0 of {peer}, part {RANK}") for peer in PEERS}
    for number, peer in enumerate(PEERS):
        if in_parts:
            made = [f"multiplied {each}" in streams.known[sent[peer]] for each in (*PEERS, RANK)]
            assert made == [place <= number for place in range(4)]
        else:
            assert "multiplied" in streams.known[sent[peer]]
    wait()
    met, read = streams.known["memory 0 met, turn 1"], streams.known["memory 0 read, turn 1"]
    assert {*sent.values(), done(streams, f"put to memory 0 of {RANK}, part {RANK}")} <= met
    assert "memory 0 met, turn 1" in read


def test_memory_is_used_again_after_a_meeting_in_between(streams: Streams, copies: Copies) -> None:
    """The third gather has the memory of the first, and writes to it when all have met for the second."""
    for _ in range(3):
        copies.gather(torch.zeros(2, 1, 3))()
    again = [name for name in streams.known if name.startswith(f"put to memory 0 of {RANK}")]
    assert len(again) == 2
    assert "memory 1 met, turn 1" in streams.known[again[1]]
    copied = [name for name in streams.known if name.startswith(f"copied to memory 0 of {RANK}, part")]
    assert len(copied) == 6
    assert all("memory 0 met, turn 2" in streams.known[name] for name in copied[3:])
