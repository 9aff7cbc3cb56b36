"""Base of what a rank of a probe answers: written on a node, read on the login node."""

from collections.abc import Mapping

from pydantic import ConfigDict

from pytest_llmbench.core.schema import Strict


class ProbeAnswer(Strict):
    """An answer, or a part of one. Its numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class DeviceAnswer(ProbeAnswer):
    """An answer about a device."""

    device: str
    """The GPU model as the driver names it, or `cpu`."""


class NcclLines(ProbeAnswer):
    """NCCL's output in a rank, and the variables that steer it."""

    lines: tuple[str, ...]  # those with facts, each once
    variables: Mapping[str, str]  # the `NCCL_` variables that the rank found
    cores: tuple[int, ...] = ()  # on which the rank may run
    far: bool = False  # whether all of them are on another socket than its GPU
