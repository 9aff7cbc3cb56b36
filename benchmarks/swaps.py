"""How often the rank with a flipped bit is named, and an innocent one, by real trainings on CPU ranks; prints a table.

    .venv/bin/python -m benchmarks.swaps [clean runs] [flips] [ranks]

Ranks are started once and train many times, each time from other first weights. A flip is one bit of the mantissa of
one number, in one step of one training of one rank: of its gradients, its weights or its activations. Seeds are fixed.
"""

import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from pytest_llmbench.checks.compute.nodes.replica import Replica, ReplicaPlan, Seating
from pytest_llmbench.checks.compute.nodes.seating import TURNS, Turn
from pytest_llmbench.checks.compute.voting import judge_numbers

PLACES = ("gradient", "weight", "activation")
_MANTISSA = 23


def main() -> None:
    """Print the table."""
    clean, flips, ranks = (int(word) for word in (*sys.argv[1:], *("1000", "300", "8")[len(sys.argv) - 1 :]))
    began = time.monotonic()
    told = trained(clean, flips, ranks)
    print(f"{ranks} ranks, 4 steps a training, {TURNS} trainings a run; {time.monotonic() - began:.0f} s\n")
    print("| runs | | named after 0 / 1 / 2 swaps | not named | an innocent named |")
    print("|--:|---|---|--:|--:|")
    for place in ("clean", *PLACES):
        count = told[place]
        named = " / ".join(str(count[f"after {swaps}"]) for swaps in range(TURNS))
        print(f"| {count['runs']} | {place} | {named} | {count['missed']} | {count['innocent']} |")
    print(
        f"\n{sum(told[place]['hidden'] for place in PLACES)} flips changed no number of any step, and are not counted."
    )


def trained(clean: int, flips: int, ranks: int) -> dict[str, Counter[str]]:
    """Train on real ranks, and count how the runs ended, by the place of the flip."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        args = (ranks, port, clean, flips, str(out))
        processes.start_processes(_rank, args=args, nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call, attr-defined]
        return {place: Counter(count) for place, count in json.loads(out.read_text()).items()}


def _rank(rank: int, ranks: int, port: int, clean: int, flips: int, out: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    seating, told = Seating("all alike"), {place: Counter[str]() for place in ("clean", *PLACES)}
    for number in range(clean + flips):
        flip = _Flip(number, ranks) if number >= clean else None
        _note(told, _run(seating, number, rank, ranks, flip), flip)
    if rank == 0:
        Path(out).write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


class _Flip:
    """One bit, somewhere."""

    def __init__(self, seed: int, ranks: int) -> None:
        draw = random.Random(seed)
        self.rank, self.turn, self.step = draw.randrange(ranks), draw.randrange(TURNS), draw.randint(1, 3)
        self.place, self.bit, self.index = draw.choice(PLACES), draw.randrange(_MANTISSA), draw.randrange(1 << 30)

    def into(self, tensor: torch.Tensor) -> None:
        """Flip it in one of these numbers."""
        bits = tensor.view(-1).view(torch.int32)
        bits[self.index % bits.numel()] ^= 1 << self.bit


class _Struck(Replica):
    """A training in which a bit flips."""

    def __init__(self, plan: ReplicaPlan, flip: _Flip) -> None:
        super().__init__(plan, torch.device("cpu"))
        self._flip = flip

    def local(self, step: int, shard: int) -> torch.Tensor:
        if step != self._flip.step:
            return super().local(step, shard)
        if self._flip.place == "gradient":
            found = super().local(step, shard)
            self._flip.into(found)
            return found
        if self._flip.place == "weight":
            parameters = list(self.model.parameters())
            self._flip.into(parameters[self._flip.index % len(parameters)].data)
            return super().local(step, shard)
        hook = self.model.layers[0].register_forward_hook(lambda _module, _given, found: self._flip.into(found.data))
        try:
            return super().local(step, shard)
        finally:
            hook.remove()


def _run(seating: Seating, seed: int, rank: int, ranks: int, flip: _Flip | None) -> list[dict[int, Turn]]:
    """All turns, of all ranks."""
    plan = ReplicaPlan(steps=4, hidden=16, layers=1, sequences=1, length=8, seed=seed)
    mine = []
    for number in range(TURNS):
        struck = flip is not None and (flip.rank, flip.turn) == (rank, number)
        replica = _Struck(plan, flip) if struck and flip else Replica(plan, torch.device("cpu"))
        mine.append(seating.train(number, replica))
    turns: list[list[Turn]] = [[]] * ranks
    dist.all_gather_object(turns, mine)
    return [{each: told[number] for each, told in enumerate(turns)} for number in range(TURNS)]


def _note(told: dict[str, Counter[str]], turns: list[dict[int, Turn]], flip: _Flip | None) -> None:
    verdict = judge_numbers(turns)
    count, guilty = told[flip.place if flip else "clean"], {flip.rank} if flip else set()
    if flip is not None and not verdict.wrong and not verdict.suspects and _as_if_clean(turns):
        count["hidden"] += 1
        return
    count["runs"] += 1
    count["innocent"] += bool(verdict.wrong.keys() - guilty or (not guilty and verdict.suspects))
    if guilty:
        count[f"after {verdict.swaps}" if guilty <= verdict.wrong.keys() else "missed"] += 1


def _as_if_clean(turns: list[dict[int, Turn]]) -> bool:
    """All trainings ended in the same weights, so that the flip was lost in rounding."""
    return len({each.steps[-1].weights for turn in turns for each in turn.values() if each.steps}) == 1


if __name__ == "__main__":
    main()
