"""How well damage to logs is found: `python -m benchmarks.mutations --per-reader 20000 --seed 1`.

Damages logs by seeded chance and replays them on the ways that a session takes. Prints a table by reader and one by
kind; `--show megatron_lm:17` prints mutant 17 of that reader beside the log it was made from. Public samples are taken
from the folder that LLMBENCH_SAMPLES names; without them there are fewer logs.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.mutations.campaign import READERS, Campaign, Tally, tally_of
from benchmarks.mutations.damage import KINDS
from benchmarks.mutations.forms import TEXT
from benchmarks.mutations.judging import Judgement, too_good
from benchmarks.mutations.subjects import form_of


def main(words: Sequence[str]) -> int:
    """Run campaigns, or show one mutant; 1 where something was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    parser.add_argument("--per-reader", type=int, default=20_000, help="mutants of each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", nargs="+", choices=[*READERS], default=[*READERS])
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a reader of its own")
    parser.add_argument("--show", metavar="READER:NUMBER", help="print one mutant and what is judged of it")
    given = parser.parse_args(words)
    if given.show:
        reader, _, number = given.show.partition(":")
        show(Campaign(reader, given.seed), int(number))
        return 0
    asked = [(reader, given.seed, given.per_reader) for reader in given.readers]
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            tallies = dict(zip(given.readers, pool.map(tally_of, asked), strict=True))
    else:
        tallies = {each[0]: tally_of(each) for each in asked}
    print("\n".join([*by_reader(tallies), "", *by_kind(tallies), "", *examples(tallies), "", *reasons(tallies)]))
    return int(any(each.missed or each.unproved or each.crashed or each.slow for each in tallies.values()))


def by_reader(tallies: Mapping[str, Tally]) -> list[str]:
    """A row for each reader."""
    columns = ("Reader", "Mutants", "Judged", "Too good", "of all", "Unconfirmed", "Not to be found", "Without proof",
               "Crashes", "Over 1 s")  # fmt: skip
    head = f"| {' | '.join(columns)} |"
    return [head, _rule(head), *(_row(reader, tally) for reader, tally in tallies.items())]


def _row(reader: str, tally: Tally) -> str:
    numbers = (
        tally.tried.total(), tally.judged.total(), tally.missed.total(), f"{tally.share_missed:.2%}",
        tally.unconfirmed.total(), tally.explained.total(), tally.unproved.total(), tally.crashed.total(),
        tally.slow.total(),
    )  # fmt: skip
    return f"| {reader} | {' | '.join(map(str, numbers))} |"


def by_kind(tallies: Mapping[str, Tally]) -> list[str]:
    """A row for each kind of damage, over all readers."""
    head = "| Damage | Mutants | Judged | Too good | Unconfirmed | Not to be found |"
    sums = {
        kind: [sum(each) for each in zip(*(tally.of(kind) for tally in tallies.values()), strict=True)]
        for kind in KINDS
    }
    return [head, _rule(head), *(f"| {kind} | {' | '.join(map(str, numbers))} |" for kind, numbers in sums.items())]


def _rule(head: str) -> str:
    return "|" + "---|" * (head.count("|") - 1)


def examples(tallies: Mapping[str, Tally]) -> list[str]:
    """The numbers to show, by what went wrong."""
    return [
        f"{reader}: {what}, by {kind}: {', '.join(map(str, numbers))}"
        for reader, tally in tallies.items()
        for (what, kind), numbers in sorted(tally.examples.items())
    ]


def reasons(tallies: Mapping[str, Tally]) -> list[str]:
    """Why some cannot be found, and how many they are by reader."""
    found: dict[tuple[str, str], int] = {}
    for reader, tally in tallies.items():
        for (_, why), count in tally.explained.items():
            found[reader, why] = found.get((reader, why), 0) + count
    return [f"{reader}: {count} not to be found: {why}" for (reader, why), count in found.items()]


def show(campaign: Campaign, number: int) -> None:
    """Print how a mutant differs from its log, and what is judged of both."""
    mutant = campaign.mutant(number)
    whole, left = mutant.subject.whole, mutant.subject.judge(mutant.files)
    print(f"{campaign.reader}:{number}: {mutant.subject.name}, {mutant.file}: {mutant.kind}")
    split = form_of(mutant.file).split if form_of(mutant.file) is TEXT else lambda data: [data]
    before, after = ([repr(piece)[2:-1] for piece in split(files[mutant.file])] for files in
                     (mutant.subject.files, mutant.files))  # fmt: skip
    print("\n".join(line[:600] for line in difflib.unified_diff(before, after, "whole", "damaged", n=0, lineterm="")))
    for name, each in (("whole", whole), ("damaged", left)):
        print(f"{name}: {each.verdict} {each.why}")
    for name in too_good(whole, left):
        print(f"too good: {name}: {_told(whole, name)} became {_told(left, name)}")


def _told(judgement: Judgement, name: str) -> str:
    value = judgement.numbers.get(name)
    return f"{value[0]:.6g} {value[1]}" if value else judgement.verdict if name == "verdict" else "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
