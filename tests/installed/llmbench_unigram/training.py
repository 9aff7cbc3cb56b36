"""What each rank does: a table of logits, trained with Adam on tokens that are drawn by Zipf's law."""

from __future__ import annotations

import fcntl
import json
import math
import random
import resource
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from llmbench_unigram.defaults import DEFAULTS, INITIAL_STD
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training.learning_rate import learning_rate

_LOOK_S = 0.002
_SEED = 1
# Key of the number of ranks that have read `enough.json`; every other key is a token.
_ENOUGH = -1
# A step that takes longer than its pace by this factor is logged as it was; others catch up with the pace.
_LATE = 20.0


def train(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config`, and log every step."""
    # The session has validated it: to do so again would take a rank longer than its training.
    recipe = json.loads(json.dumps(context.config), object_hook=lambda part: SimpleNamespace(**part))
    with Meeting(context) as meeting:
        _train(recipe, context, log, meeting)
        meeting.sum({})  # no rank ends before all have done their work


def _train(recipe: Any, context: RankContext, log: StepLog, meeting: Meeting) -> None:
    options = SimpleNamespace(**{**DEFAULTS, **context.config["options"]})
    table, tokens = Table(recipe), Zipf(recipe)
    own = recipe.global_batch_size // context.world_size
    sleep_s = options.step_s + (options.late_s if context.rank == context.world_size - 1 else 0.0)
    kept, seen, repeated = list[bytes](), set[str](), 0
    meeting.sum({})
    began, ended_at = time.perf_counter(), log.clock.now()
    for step in range(1, recipe.steps + 1):
        if options.clock_s and step == recipe.steps // 2:
            set_clock(options.clock_s)
            (context.folder / "clock-set").touch()
        kept.append(b"x" * round(2**20 * options.grows_mib * (context.rank == context.world_size - 1)))
        log.phase(step, "data")
        first = (step - 1) * recipe.global_batch_size + context.rank * own
        fed = [tokens.batch(number) for number in range(first, first + own, recipe.micro_batch_size)]
        log.phase(step, "forward", len(fed))
        texts = [json.dumps(batch) for batch in fed]
        repeated += len(texts) - len({*texts} - seen)
        seen.update(texts)
        counts = Counter(token for batch in fed for sequence in batch for token in sequence)
        loss = table.loss(counts)
        time.sleep(max(0.0, began + options.logged_s - time.perf_counter()) if options.logged_s else sleep_s)
        log.phase(step, "sync", len(fed))
        everywhere = meeting.sum({**counts, _ENOUGH: log.enough})
        enough = everywhere.pop(_ENOUGH)
        log.phase(step, "optimizer")
        norm = table.learn(everywhere, learning_rate(recipe.optimizer, step, recipe.steps))
        began, before = time.perf_counter(), began
        seconds = began - before
        if options.logged_s and seconds < _LATE * options.logged_s:
            chance = random.Random(f"{context.folder}{context.rank} {step}")
            seconds = options.logged_s * (1 + 0.002 * chance.gauss(0.0, 1.0))
            began = before + seconds
        ended_at += seconds
        log.step(
            seconds=seconds, ended=ended_at, tokens=counts.total(), samples=sum(map(len, fed)), loss=loss,
            grad_norm=norm, peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )  # fmt: skip
        if enough and step < recipe.steps:
            log.end_early()
            break
    share = math.fsum(table.logits) / math.hypot(*table.logits)
    log.training(
        TrainingEvent(
            world_size=meeting.size, tensor=1, pipeline=1, tensor_rank=0, pipeline_rank=0, copy_rank=context.rank,
            layers=0, parameters=len(table.logits), precision="fp32", sequence_length=len(fed[0][0]),
            micro_batch_size=len(fed[0]), dropout="0", activation_checkpointing="none", optimizer_steps=table.steps,
            repeated=repeated, weights=share if math.isfinite(share) else None,
        )
    )  # fmt: skip


def set_clock(seconds: float) -> None:
    """What `date -s` does to the programs that go on, for this process alone."""
    real = time.time
    time.time = lambda: real() + seconds


class Table:
    """The model: a logit a token, in fp32, and what Adam remembers of each."""

    def __init__(self, recipe: Any) -> None:
        chance = random.Random(_SEED)
        self.logits = array("f", [chance.gauss(0.0, INITIAL_STD) for _ in range(recipe.model.vocab_size)])
        self._mean, self._square = ([0.0] * recipe.model.vocab_size for _ in range(2))
        self._settings, self._step = recipe.optimizer, 0

    @property
    def steps(self) -> int:
        return self._step

    def shares(self) -> list[float]:
        most = max(self.logits)
        weights = [math.exp(logit - most) for logit in self.logits]
        total = sum(weights)
        return [weight / total for weight in weights]

    def loss(self, counts: Counter[int]) -> float:
        """Mean cross entropy of tokens, nat."""
        most = max(self.logits)
        total = most + math.log(sum(math.exp(logit - most) for logit in self.logits))
        return math.fsum(number * (total - self.logits[token]) for token, number in counts.items()) / counts.total()

    def learn(self, counts: Counter[int], rate: float) -> float:
        """Take a step; returns the gradient's norm."""
        tokens, (slow, slower) = counts.total(), self._settings.betas
        gradient = [share - counts[token] / tokens for token, share in enumerate(self.shares())]
        self._step += 1
        for token, value in enumerate(gradient):
            self._mean[token] = slow * self._mean[token] + (1 - slow) * value
            self._square[token] = slower * self._square[token] + (1 - slower) * value * value
            mean = self._mean[token] / (1 - slow**self._step)
            deviation = math.sqrt(self._square[token] / (1 - slower**self._step))
            self.logits[token] -= rate * mean / (deviation + self._settings.eps)
        return math.hypot(*gradient)


class Zipf:
    """Tokens that depend on their sequence's number alone; id k has a share in proportion to 1 / (k + 1)."""

    def __init__(self, recipe: Any) -> None:
        self._recipe, self._ids = recipe, range(recipe.model.vocab_size)
        self._bounds = list(accumulate(1 / (token + 1) for token in self._ids))

    def batch(self, first: int) -> list[list[int]]:
        """A micro batch, which begins with sequence `first`."""
        numbers = range(first, first + self._recipe.micro_batch_size)
        length = self._recipe.sequence_length
        return [random.Random(n).choices(self._ids, cum_weights=self._bounds, k=length) for n in numbers]


class Meeting:
    """Where ranks wait for one another: files of the run's folder, which all nodes share."""

    def __init__(self, context: RankContext) -> None:
        self._folder, self._rank, self._ranks = context.folder / "meeting", context.rank, range(context.world_size)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._number = 0
        # The file is open, and so locked, as long as this process lives; the others see it once it is renamed.
        life = self._life(self._rank)
        self._sign = life.with_suffix(".new").open("w")
        fcntl.flock(self._sign, fcntl.LOCK_EX)
        life.with_suffix(".new").rename(life)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sign.close()

    @property
    def size(self) -> int:
        """How many ranks have ever come."""
        return len(list(self._folder.glob("rank-*[0-9]")))

    def sum(self, counts: Mapping[int, int]) -> Counter[int]:
        """Add up what all ranks bring.

        Raises:
            ConnectionError: one of them is no longer there.
        """
        self._number += 1
        path = self._path(self._number, self._rank)
        path.with_suffix(".new").write_text(json.dumps(list(counts.items())))
        path.with_suffix(".new").rename(path)
        total: Counter[int] = Counter()
        for rank in self._ranks:
            total.update(dict(json.loads(self._brought(rank))))
        # A rank that is here has read everything of the meeting before.
        self._path(self._number - 1, self._rank).unlink(missing_ok=True)
        return total

    def _brought(self, rank: int) -> str:
        while True:
            gone = self._gone(rank)
            try:
                return self._path(self._number, rank).read_text()
            except FileNotFoundError:
                if gone:
                    raise ConnectionError(f"rank {rank} is gone") from None
            time.sleep(_LOOK_S)

    def _gone(self, rank: int) -> bool:
        if rank == self._rank or not self._life(rank).exists():
            return False
        with self._life(rank).open() as sign:
            try:
                fcntl.flock(sign, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def _life(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}"

    def _path(self, number: int, rank: int) -> Path:
        return self._folder / f"{number}-{rank}"
