"""The part of its system that a session keeps: facts that judge its logs, and free of secrets."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationError

from pytest_llmbench.checks.base import CheckSettings
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import Gpu, System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.schema import Name, Strict

_OF_SYSTEM = ("name", "cluster", "gpus_per_node", "cpu_ranks_per_node", "gpu", "validation")


class KeptSystem(Strict):
    """`system.json` of a session's folder: facts of its system, and of what it asked of it."""

    schema_version: Literal[1] = 1
    name: Name
    """Name of the system."""
    cluster: Literal["slurm", "local"]
    """How jobs reach the nodes: through Slurm, or on this machine."""
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    """Number of GPUs of one node; null stands for each recipe's own number."""
    cpu_ranks_per_node: PositiveInt = 1
    """Number of ranks per node for a run without GPUs."""
    gpu: Gpu | None = None
    """GPU model and its published peaks; null where it is unknown, or there is none."""
    nodes: PositiveInt | None = None
    """Number of nodes that the session asked for; null stands for each recipe's own number."""
    scale: Scale = "full"
    """Scale of the runs: `full` or `smoke`."""
    bare: bool = False
    """Whether the system sets neither variables nor environments of frameworks, which are not kept."""
    rerun: bool = False
    """Whether undecided runs were to be repeated, which costs each look some certainty."""
    validation: Mapping[str, CheckSettings] = {}
    """Settings of checks, and the bounds of their measurements, by check."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Keep what is needed of a session's system."""
        system = settings.system
        own: dict[str, Any] = {"nodes": settings.nodes, "scale": settings.scale, "rerun": settings.rerun}
        own["bare"] = not (system.env or system.environments)
        return cls(**own, **{name: getattr(system, name) for name in _OF_SYSTEM})

    @classmethod
    def read(cls, text: bytes, where: str) -> Self:
        """Read it back. Raises ConfigError: the text is damaged."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{where}: cannot be read: {error}") from error

    @property
    def system(self) -> System:
        """The system as far as it is kept."""
        return System(**{name: getattr(self, name) for name in _OF_SYSTEM})
