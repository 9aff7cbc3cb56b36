"""The stages of `at_one_node.py`: the command of each on a machine's GPUs, and the minutes that it has."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu.stages import LeftOut, Stage
from benchmarks.gpu.whole_path.host import Machine

MINUTES = {
    "azure": 2.6, "scaling": 1.8, "all_reduce": 0.6, "collectives": 0.7, "lambda": 1.5, "slice": 1.0, "path": 0.7,
}  # fmt: skip
BETWEEN_GPUS = frozenset({"all_reduce", "collectives", "slice"})
# What is not the command's own of a stage's seconds: imports before its clock starts; of the path packing as well.
_BEFORE_S = 5.0
_BESIDE_THE_PATH = 0.15
OTHER_COLLECTIVES = ("all_gather", "reduce_scatter", "alltoall")
_GPU = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What one call of `engines.py` trains."""

    rows: tuple[str, ...]
    variants: tuple[str, ...]
    steps: int = 20


TRAININGS = {
    "azure": Training(
        rows=("azure125m", "azure125m_mp1", "azure125m_mp2"), variants=("torch", "megatron_core"), steps=50
    ),
    "scaling": Training(rows=("opt125m",), variants=("torch",)),
    "lambda": Training(rows=("opt350m_sft",), variants=("deepspeed",)),
    "slice": Training(rows=("slice175b",), variants=("megatron_core",)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Where everything is, and goes.

    Attributes:
        folder: for what is kept.
        work: for what is not; stages/ in it is packed.
    """

    machine: Machine
    folder: Path
    work: Path
    nccl_tests: Path | None
    slurm: Path | None

    def record(self, stage: str) -> Path:
        """Where a stage's record is."""
        return self.folder / f"{stage}.json"

    def command(self, stage: str, seconds: float) -> list[str]:
        """What a stage runs, in so many seconds.

        Raises:
            LeftOut: something that it takes is not here.
        """
        if stage in TRAININGS:
            words = self._trains(stage, seconds)
        elif stage == "path":
            words = self._takes_the_path(seconds)
        else:
            words = self._communicates(stage)
        return [sys.executable, *map(str, words)]

    def _trains(self, stage: str, seconds: float) -> list[object]:
        training, rehearsed = TRAININGS[stage], self.machine.rehearsed
        gpus = scales(self.machine.gpus) if stage == "scaling" else [self.machine.gpus]
        return [
            _GPU / "training/engines.py", "--rows", *training.rows, "--variants", *training.variants, "--gpus", *gpus,
            "--steps", 7 if rehearsed else training.steps, "--repeats", 1,
            "--budget-s", f"{max(seconds - _BEFORE_S, 0.0):.0f}", "--cache", self.work / "cache",
            "--record", self.record(stage), "--logs", self.work / "stages" / stage / "failed.tar.gz",
            *(["--smoke"] if rehearsed else []),
        ]  # fmt: skip

    def _communicates(self, stage: str) -> list[object]:
        if self.nccl_tests is None or not self.nccl_tests.is_dir():
            raise LeftOut(f"no nccl-tests ({self.nccl_tests or 'not given'}): name their folder with --nccl-tests")
        rehearsed = self.machine.rehearsed
        return [
            _GPU / "collectives.py", self.nccl_tests, "--gpus", self.machine.gpus,
            "--device", "cpu" if rehearsed else "cuda", "--record", self.record(stage),
            "--collectives", *(OTHER_COLLECTIVES if stage == "collectives" else [stage]),
            "--sizes", *(4096 * 8**power for power in range(3 if rehearsed else 8)),
        ]  # fmt: skip

    def _takes_the_path(self, seconds: float) -> list[object]:
        return [
            _GPU / "whole_path/walk.py", self.work / "stages" / "path" / "results", "--stages", "up,split,whole",
            "--minutes", f"{(1 - _BESIDE_THE_PATH) * seconds / 60:.2f}",
            *(["--slurm", self.slurm] if self.slurm else []),
            *(["--rehearse", self.machine.gpus] if self.machine.rehearsed else []),
        ]  # fmt: skip


def scales(gpus: int) -> list[int]:
    """Numbers of GPUs: one and all first, so that there is an efficiency, then the powers of two between."""
    return list(dict.fromkeys([1, gpus, *(1 << power for power in range(1, gpus.bit_length()) if 1 << power < gpus)]))


def plan(visit: Visit, chosen: Sequence[str], minutes: Mapping[str, float]) -> list[Stage]:
    """The stages that were chosen, in their order; on one GPU those between GPUs are none."""
    return [
        Stage(name=name, seconds=60 * minutes[name], command=partial(visit.command, name))
        for name in MINUTES
        if name in chosen and (visit.machine.gpus > 1 or name not in BETWEEN_GPUS)
    ]
