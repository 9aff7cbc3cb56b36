"""Training speeds of our engines and of what a user would pick in their place, in turns, on the GPUs of this machine.

    python benchmarks/gpu/training/engines.py --gpus 1 2 --rows opt125m --variants torch plain_torch --record OUT.json

`rows.yaml` has the rows and what every variant trains. Variants take turns, A B C A B C, each launch in processes of
its own; everything has run once before anything runs twice, and the record is written after every launch. `table.py`
prints it. A variant that fails is a line with its error, and is not started again; its logs are kept beside the record.

`--option megatron_core.attention=cudnn` changes a recipe's option, `--option torch.micro_batch_size=16` one of its own
keys. With `--variants torch torch:big --option torch:big.micro_batch_size=16` both run. The exit status is 0 when every
line has a rate and no two variants of a row disagree.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.machine import machine, source
from benchmarks.gpu.training.launch import CHECKOUT, Ended, launch, owner
from benchmarks.gpu.training.measuring import RULES, measured
from benchmarks.gpu.training.records import Launch, Record
from benchmarks.gpu.training.rows import Case, Choice, load, parse_options
from benchmarks.gpu.training.summary import table
from benchmarks.gpu.training.table import markdown
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire.task import Owner


class Benchmark:
    """One run of this program.

    Args:
        cases: every cell of the table, in order.
        options: the command line.
        work: a folder for the ranks' files, and for what they compile.
    """

    def __init__(self, cases: Sequence[Case], options: argparse.Namespace, work: Path) -> None:
        self._cases, self._options, self._work = cases, options, work
        self._clock = time.monotonic()
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine, self._source = machine(), source(CHECKOUT)
        self._versions: dict[str, str] = {}
        self._launches: list[Launch] = []
        self._complete = False
        # Packed logs need no folder beside the record as well.
        self._logs = (work if options.logs else options.record.parent) / f"{options.record.stem}.logs"
        shutil.rmtree(self._logs, ignore_errors=True)  # of the record that this one replaces
        cache = (options.cache or work / "cache").resolve()
        self._env = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }

    def run(self) -> Record:
        """Start everything, in turns, as long as there is time."""
        with owner(self._work) as waits:
            for turn in range(1, self._options.repeats + 1):
                for case in self._cases:
                    if self._failed(case):
                        continue
                    if not self._fits(case):
                        print(f"{case}, turn {turn}: the time is up after {self._elapsed:.0f} s", flush=True)
                        return self._written()
                    self._start(case, turn, waits)
        self._complete = True
        return self._written()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._clock

    def _failed(self, case: Case) -> bool:
        return any(each.error is not None for each in self._of(case))

    def _of(self, case: Case) -> list[Launch]:
        return [each for each in self._launches if each.cell == (case.row, case.variant, case.gpus)]

    def _fits(self, case: Case) -> bool:
        """Whether a launch may end in time, if it takes as long as the longest of its cell, or of all, did."""
        like = self._of(case) or self._launches
        return bool(self._elapsed + max((each.seconds for each in like), default=0.0) <= self._options.budget_s)

    def _start(self, case: Case, turn: int, waits: Owner) -> None:
        name = f"{case.row}-{case.variant}-{case.gpus}-{turn}".replace(":", "+")
        folder = self._work / name
        folder.mkdir()
        deadline_s = min(self._options.deadline_s, self._options.budget_s - self._elapsed)
        try:
            work = case.task(folder)
            ended = launch(work, case.topology, folder, waits=waits, deadline_s=deadline_s, env=self._env)
        except ConfigError as error:
            ended = Ended(started=time.time(), seconds=0.0, error=str(error))
        found = measured(case, folder, ended, turn=turn, usual=self._versions)
        if not self._versions and found.versions:
            self._versions = dict(found.versions)
            found = found.model_copy(update={"versions": {}})
        if found.error is not None:
            found = found.model_copy(update={"log": self._keep(folder)})
        shutil.rmtree(folder)
        self._launches.append(found)
        self._written()
        rate = found.error or f"{found.tokens_per_s:,.0f} tokens/s, {found.samples_per_s:,.1f} samples/s"
        print(f"{case}, turn {turn}: {rate} ({found.seconds:.0f} s, {self._elapsed:.0f} s in all)", flush=True)

    def _keep(self, folder: Path) -> str:
        """Keep what a launch left behind, and pack all that is kept, where that was asked for."""
        shutil.copytree(folder, self._logs / folder.name)
        if self._options.logs is not None:
            with tarfile.open(self._options.logs, "w:gz") as archive:
                archive.add(self._logs, arcname=self._logs.name)
        return f"{self._logs.name}/{folder.name}"

    def _written(self) -> Record:
        record = Record(
            date=self._date,
            command=shlex.join(["python", "benchmarks/gpu/training/engines.py", *sys.argv[1:]]),
            complete=self._complete,
            seconds=self._elapsed,
            machine=self._machine,
            versions=self._versions,
            source=self._source,
            rules=RULES,
            recipes={str(case): case.recipe.model_dump(mode="json", exclude={"references"}) for case in self._cases},
            launches=tuple(self._launches),
            table=table(self._cases, self._launches),
        )
        write_model(self._options.record, record)
        return record


def main() -> int:
    """Run what the command line asks for, write the record, print the table."""
    options = _parse()
    choice = Choice(
        rows=options.rows,
        variants=options.variants,
        gpus=options.gpus,
        steps=options.steps,
        scale="smoke" if options.smoke else "full",
        device=options.device or ("cpu" if options.smoke else "cuda"),
        options=parse_options(options.option),
    )
    cases = list(choice.cases())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the ranks are ended on the way out
    with tempfile.TemporaryDirectory(prefix="engines-") as work:
        record = Benchmark(cases, options, Path(work)).run()
    print(markdown(record))
    good = all(line.error is None and line.agrees is not False for line in record.table)
    return 0 if good and record.complete else 1


def _parse() -> argparse.Namespace:
    names = [name.rsplit("-", 1) for name in load("full")]
    rows, variants = (list(dict.fromkeys(each)) for each in zip(*names, strict=True))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="numbers of GPUs")
    parser.add_argument("--rows", nargs="+", default=rows, help=f"of {', '.join(rows)}")
    parser.add_argument("--variants", nargs="+", default=variants, help=f"of {', '.join(variants)}")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--steps", type=int, default=20, help="of every launch; the first 5 are not judged")
    parser.add_argument("--option", action="append", default=[], metavar="VARIANT.KEY=VALUE")
    parser.add_argument("--smoke", action="store_true", help="tiny models in fp32, on CPU ranks")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda, or with --smoke cpu")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="no launch starts that would end later")
    parser.add_argument("--deadline-s", type=float, default=300.0, help="of one launch; then its ranks are killed")
    parser.add_argument("--cache", type=Path, help="keep what is compiled here; else it is gone with this program")
    parser.add_argument("--record", type=Path, default=Path("engines.json"))
    parser.add_argument("--logs", type=Path, help="pack the logs of launches that failed into this tar.gz")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"error: {error}")
