"""What a session keeps of its system: the facts that its logs are judged by, and nothing that could be secret."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, ValidationError

from pytest_llmbench.checks.base import CheckSettings
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import Gpu, System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Name, Strict


class KeptSystem(Strict):
    """`system.json` of a session's folder.

    Attributes:
        schema_version: 1.
        name: name of the system.
        cluster: how its jobs get there.
        gpus_per_node: GPUs of one node; null, each recipe's own number.
        cpu_ranks_per_node: ranks per node of a run without GPUs.
        gpu: the GPU model and its published peaks; null where it is not known, or there is none.
        validation: settings of checks, and the bounds of their measurements, by check.
    """

    schema_version: Literal[1] = 1
    name: Name
    cluster: Literal["slurm", "local"]
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    cpu_ranks_per_node: PositiveInt = 1
    gpu: Gpu | None = None
    validation: Mapping[str, CheckSettings] = {}

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Keep what is needed of a session's system."""
        system = settings.system
        return cls(**{name: getattr(system, name) for name in cls.model_fields if name != "schema_version"})

    @classmethod
    def read(cls, text: bytes, where: str) -> Self:
        """Read it back.

        Raises:
            ConfigError: it is no such file.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{where}: cannot be read: {error}") from error

    @property
    def system(self) -> System:
        """The system as far as it is kept."""
        return System(**{name: getattr(self, name) for name in type(self).model_fields if name != "schema_version"})
