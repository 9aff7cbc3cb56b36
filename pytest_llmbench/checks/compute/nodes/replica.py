"""A small decoder that trains deterministically, and a digest of all its numbers in every step.

The gradients are gathered and summed in a fixed order, so that the sum is independent of the links, and a wrong number
shows in its own rank before it reaches the others.
"""

import hashlib
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from pytest_llmbench.checks.compute.nodes.answer import TURNS, RankNumbers, Seat, StepDigests, Turn, groups, teams
from pytest_llmbench.checks.compute.nodes.gemm import setting_of
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.workloads.node.machine import cpu, device_name
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from pytest_llmbench.workloads.rank.rendezvous import exchange_texts, process_group

_HEADS, _VOCABULARY = 4, 256
_SEED = 1  # of the first weights and of the data


class ReplicaPlan(Strict):
    """The training of every rank."""

    steps: int  # of each training
    hidden: int
    layers: int
    sequences: int  # of a rank's share of a step
    length: int
    timeout_s: float  # longest wait of a rank for the others


def train(context: RankContext, log: ProbeLog) -> RankNumbers:
    """Train a `ReplicaPlan` in each turn, and answer with the digests."""
    plan = validate(ReplicaPlan, context.config, "same_numbers")
    # cuBLAS is deterministic with a fixed workspace.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    log.phase("rendezvous")
    with process_group(context, plan.timeout_s) as device:
        model = cpu() if device.type == "cpu" else {}
        seating = Seating(exchange_texts(f"{setting_of(context)} {model}", device))
        turns = []
        for number in range(TURNS):
            log.phase(f"training {number + 1} of {TURNS}")
            turns.append(seating.train(number, Replica(plan, device)))
    return RankNumbers(device=device_name(context), turns=tuple(turns))


class Seating:
    """This rank's seats among all, with a process group for each group; every rank makes all of them."""

    def __init__(self, settings: Sequence[str]) -> None:
        # Devices or versions that differ may compute other last bits.
        alike = [[rank for rank, own in enumerate(settings) if own == kind] for kind in dict.fromkeys(settings)]
        self._seats: list[tuple[Seat, list[int], dist.ProcessGroup] | None] = [None] * TURNS
        for number, team in enumerate(team for ranks in alike for team in teams(ranks)):
            for turn in range(TURNS):
                for group, ranks in enumerate(groups(team, turn)):
                    made = dist.new_group(ranks)
                    if dist.get_rank() in ranks:
                        seat = Seat(team=number, group=group, shard=ranks.index(dist.get_rank()))  # type: ignore[arg-type]
                        self._seats[turn] = seat, ranks, made

    def train(self, turn: int, replica: "Replica") -> Turn:
        place = self._seats[turn]
        if place is None:
            return Turn(seat=None, steps=())
        seat, ranks, group = place
        return Turn(seat=seat, steps=tuple(replica.step(step, seat.shard, ranks, group) for step in replica.steps))


class Replica:
    """One training of the decoder on one rank; `steps` are their numbers."""

    def __init__(self, plan: ReplicaPlan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self.steps = range(1, plan.steps + 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)  # on the host, independent of any GPU
            self.model = ReplicaDecoder(plan)
        self.model.to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, step: int, shard: int, ranks: Sequence[int], group: dist.ProcessGroup) -> StepDigests:
        """Train one step on a share of its data, with the other ranks of the group."""
        local = self.local(step, shard)
        parts = [torch.empty_like(local) for _ in ranks]
        dist.all_gather(parts, local, group=group)
        # They come in the order of the ranks.
        by_rank = dict(zip(sorted(ranks), parts, strict=True))
        parts = [by_rank[rank] for rank in ranks]
        own, gathered = _digest(local), tuple(map(_digest, parts))
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        self._update(total / len(parts))
        return StepDigests(local=own, gathered=gathered, weights=_digest(*self.model.parameters()))

    def local(self, step: int, shard: int) -> torch.Tensor:
        """The gradients of a share of a step's data, and its loss behind them."""
        plan = self._plan
        generator = torch.Generator().manual_seed((_SEED * 1_000_003 + step) * 1_009 + shard)
        tokens = torch.randint(_VOCABULARY, (plan.sequences, plan.length + 1), generator=generator).to(self._device)
        self.model.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            scores = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.float().reshape(-1, _VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad.reshape(-1) for weight in self.model.parameters() if weight.grad is not None]
        return torch.cat([*gradients, loss.detach().reshape(1)])

    def _update(self, mean: torch.Tensor) -> None:
        first = 0
        for parameter in self.model.parameters():
            parameter.grad = mean[first : first + parameter.numel()].view_as(parameter)
            first += parameter.numel()
        self._optimizer.step()


class ReplicaDecoder(nn.Module):
    """The products, the attention and the normalizations of a language model."""

    def __init__(self, plan: ReplicaPlan) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, plan.hidden)
        self.layers = nn.ModuleList(ReplicaLayer(plan.hidden) for _ in range(plan.layers))
        self.scores = nn.Linear(plan.hidden, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: torch.Tensor = self.scores(hidden)
        return scores


class ReplicaLayer(nn.Module):
    """Attention and two products."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.mixed, self.joined = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Attend by plain products: fused attention may sum in another order each time."""
        sequences, length, width = hidden.shape
        parts = self.mixed(self.norms[0](hidden)).view(sequences, length, 3, _HEADS, width // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = query @ key.transpose(-1, -2) / (width // _HEADS) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        seen = weights.masked_fill(later, -torch.inf).softmax(-1).to(value.dtype) @ value
        hidden = hidden + self.joined(seen.transpose(1, 2).reshape(sequences, length, width))
        added: torch.Tensor = hidden + self.narrow(functional.gelu(self.wide(self.norms[1](hidden))))
        return added


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().reshape(-1).numpy().data)
    return digest.hexdigest()
