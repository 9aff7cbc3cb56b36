"""The faults, one small declaration each."""

from benchmarks.faults.declared import ends, inputs, jobs, ranks, slurm
from benchmarks.faults.scenes import Fault

FAULTS: list[Fault] = [*ranks.FAULTS, *inputs.FAULTS, *jobs.FAULTS, *slurm.FAULTS, *ends.FAULTS]
