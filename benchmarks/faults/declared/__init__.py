"""The faults, one small declaration each."""

from benchmarks.faults.declared import jobs, ranks
from benchmarks.faults.scenes import Fault

FAULTS: list[Fault] = [*ranks.FAULTS, *jobs.FAULTS]
