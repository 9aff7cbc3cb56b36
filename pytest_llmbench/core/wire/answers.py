"""Base of what a rank of a probe answers: written on a node, read on the login node."""

from pydantic import ConfigDict

from pytest_llmbench.core.schema import Strict


class ProbeAnswer(Strict):
    """An answer, or a part of one. Its numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class DeviceAnswer(ProbeAnswer):
    """An answer about a device."""

    device: str
    """The GPU model as the driver names it, or `cpu`."""
