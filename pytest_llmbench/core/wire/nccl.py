"""NCCL's own lines of a rank, as it sends them to the login node."""

from collections.abc import Mapping

from pytest_llmbench.core.wire.answers import ProbeAnswer


class NcclLines(ProbeAnswer):
    """NCCL's output in a rank, and the variables that steer it."""

    lines: tuple[str, ...]  # those with facts, each once
    variables: Mapping[str, str]  # the `NCCL_` variables that the rank found
    cores: tuple[int, ...] = ()  # on which the rank may run
    far: bool = False  # whether all of them are on another socket than its GPU
