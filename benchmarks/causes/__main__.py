"""How often the cause of a missed speed is right: `python -m benchmarks.causes --seed 1`.

Trains on a few real ranks of this machine with an injected cause, judges each run by a threshold that it misses, and
prints which cause was named: a table in Markdown. Exits with 1 if fewer than 90 % are right, or an innocent rank is
named in more than 2 %. Takes root, and control groups of version 1: ranks go before other work of the machine. Some 10
minutes on two cores.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.causes.campaign import run
from benchmarks.causes.cases import Injected, cases

RIGHT, INNOCENT = 0.9, 0.02


def main(words: Sequence[str]) -> int:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.causes", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of each scenario")
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    given = parser.parse_args(words)
    began = time.monotonic()
    named: dict[str, Counter[str]] = defaultdict(Counter)
    right: Counter[str] = Counter()
    innocent = 0
    chosen = [case for case in cases(given.seed, given.share) if given.only in case.name]
    for case in chosen:
        verdict, cause, rank = run(case)
        kind = "met the threshold" if cause is None else cause.partition(":")[0]
        is_right = kind in case.truth and (case.culprit is None or rank == case.culprit)
        right[case.name] += is_right
        innocent += rank is not None and rank != case.culprit
        named[case.name][kind if rank is None or rank == case.culprit else f"{kind} (innocent rank)"] += 1
        print(f"{'right' if is_right else 'WRONG'}  {case.name}  {verdict}  {cause}", file=sys.stderr, flush=True)
    print(_table(chosen, named, right))
    total = len(chosen)
    of_all = sum(right.values())
    print(
        f"\n{total} runs in {time.monotonic() - began:.0f} s: {of_all} right ({100 * of_all / total:.1f} %), an "
        f"innocent rank named in {innocent} ({100 * innocent / total:.1f} %)"
    )
    return int(of_all < RIGHT * total or innocent > INNOCENT * total)


def _table(chosen: Sequence[Injected], named: dict[str, Counter[str]], right: Counter[str]) -> str:
    lines = ["| Injected | Expected | Runs | Right | Named |", "|---|---|--:|--:|---|"]
    for name in dict.fromkeys(sorted(case.name for case in chosen)):
        truth = next(case.truth for case in chosen if case.name == name)
        told = ", ".join(f"{kind} {number}" for kind, number in named[name].most_common())
        number = named[name].total()
        lines.append(f"| {name} | {' or '.join(sorted(truth))} | {number} | {right[name]} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
