"""A campaign: many damaged logs of one reader, each made from a seed and judged, and counted."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.mutations import frameworks, nodes
from benchmarks.mutations.damage import damaged
from benchmarks.mutations.judging import Files, Judgement, too_good
from benchmarks.mutations.reasons import reason
from benchmarks.mutations.subjects import Subject

_SLOW_S = 1.0
_EXAMPLES = 3

READERS: Mapping[str, Callable[[], Iterable[Subject]]] = {
    each.__name__: each
    for each in (
        frameworks.megatron_lm, frameworks.megatron_events, frameworks.metaseq, frameworks.mlperf,
        frameworks.torchtitan, frameworks.nemo,
        frameworks.nemo_events, frameworks.gnu_time, frameworks.deepspeed_chat, frameworks.eval_batch,
        frameworks.step_log, frameworks.telemetry, nodes.nccl_text, nodes.nccl_json, nodes.dcgm_json,
        nodes.nvidia_smi, nodes.nvlink, nodes.kernel_log,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A damaged log."""

    number: int  # position in its campaign
    subject: Subject  # the log that was damaged
    kind: str  # how
    file: str  # position among its files
    files: Files  # the rest


@dataclass(slots=True)
class Tally:
    """Counts of a reader's mutants."""

    tried: Counter[str] = field(default_factory=Counter)  # how many, by kind
    judged: Counter[str] = field(default_factory=Counter)  # how many were judged nevertheless, by kind
    # How many were judged with something too good that could have been found, by kind and statistic.
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    # How many were so where nothing in the log bears on it, by kind and reason.
    explained: Counter[tuple[str, str]] = field(default_factory=Counter)
    # How many were so, and their verdict says that nothing confirms the duration of steps, by kind.
    unconfirmed: Counter[str] = field(default_factory=Counter)
    unproved: Counter[str] = field(default_factory=Counter)  # judged without the proof of an end, by kind
    crashed: Counter[str] = field(default_factory=Counter)  # by kind
    slow: Counter[str] = field(default_factory=Counter)  # by kind: more than a second of this process's own time
    # Numbers of the first mutants, by what went wrong and kind.
    examples: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def example(self, what: str, kind: str, number: int) -> None:
        """Keep a mutant's number, of the first few."""
        known = self.examples.setdefault((what, kind), [])
        if len(known) < _EXAMPLES:
            known.append(number)

    def of(self, kind: str) -> tuple[int, int, int, int, int]:
        """Of a kind: tried, judged, missed, unconfirmed, explained."""
        missed, explained = (
            sum(count for (of, _), count in each.items() if of == kind) for each in (self.missed, self.explained)
        )
        return self.tried[kind], self.judged[kind], missed, self.unconfirmed[kind], explained

    @property
    def share_missed(self) -> float:
        """Of all mutants, those that were judged too well and could have been found."""
        return self.missed.total() / max(1, self.tried.total())


class Campaign:
    """The mutants of one reader."""

    def __init__(self, reader: str, seed: int) -> None:
        self.reader = reader
        self._seed = seed
        self._subjects: Sequence[Subject] = list(READERS[reader]())

    def mutant(self, number: int) -> Mutant:
        """Make one; the same for the same seed and number."""
        rng = Random(f"{self._seed}:{self.reader}:{number}")
        subject = rng.choices(self._subjects, [1 if each.bare else 4 for each in self._subjects])[0]
        file = rng.choice(subject.targets or sorted(subject.files))
        others = [each for each in self._subjects if each is not subject]
        kind, left = damaged(subject.log(file, others), rng)
        return Mutant(number=number, subject=subject, kind=kind, file=file, files={**subject.files, file: left})

    def run(self, numbers: Iterable[int]) -> Tally:
        """Judge mutants."""
        tally = Tally()
        if not self._subjects:
            print(f"# {self.reader}: no log of it without the folder LLMBENCH_SAMPLES", file=sys.stderr, flush=True)
            return tally
        for number in numbers:
            mutant = self.mutant(number)
            tally.tried[mutant.kind] += 1
            began = time.process_time()
            try:
                left = mutant.subject.judge(mutant.files)
            except Exception:  # noqa: BLE001 - a crash is what is looked for
                tally.crashed[mutant.kind] += 1
                tally.example(f"crashed: {traceback.format_exc().strip().splitlines()[-1][:80]}", mutant.kind, number)
                continue
            if time.process_time() - began > _SLOW_S:
                tally.slow[mutant.kind] += 1
                tally.example("slow", mutant.kind, number)
            self._count(tally, mutant, left)
        return tally

    def _count(self, tally: Tally, mutant: Mutant, left: Judgement) -> None:
        kind, subject = mutant.kind, mutant.subject
        if left.verdict == "error":
            return
        tally.judged[kind] += 1
        if left.verdict == "judged" and subject.proves is not None and not subject.proves(mutant.files):
            tally.unproved[kind] += 1
            tally.example("without proof", kind, mutant.number)
        if subject.bare:  # its numbers were never judged
            return
        better = too_good(subject.whole, left)
        where = f"{self.reader}: {subject.name}"
        unexplained = [name for name in better if reason(where, kind, name) is None]
        if unexplained and "duration" in left.unconfirmed:
            tally.unconfirmed[kind] += 1
        elif unexplained:
            tally.missed[kind, unexplained[0]] += 1
            tally.example(f"too good: {unexplained[0]}", kind, mutant.number)
        elif better:
            tally.explained[kind, reason(where, kind, better[0]) or ""] += 1


def tally_of(asked: tuple[str, int, int]) -> Tally:
    """Run a whole campaign: of a reader, with a seed, of so many mutants."""
    reader, seed, mutants = asked
    began = time.process_time()
    tally = Campaign(reader, seed).run(range(mutants))
    print(f"# {reader}: {time.process_time() - began:.0f} s of CPU time", file=sys.stderr, flush=True)
    return tally
