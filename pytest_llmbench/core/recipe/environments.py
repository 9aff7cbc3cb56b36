"""Parts of a system's file: the network between its nodes, and the environments of frameworks that are commands."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Strict


class Network(Strict):
    """NICs that carry the collectives. Stated numbers count before those that a node shows of itself."""

    nics_per_node: PositiveInt | None = None
    """Number of NICs of one node for collectives; absent, as counted on the node."""
    rate_gbits: PositiveFloat | None = None
    """Rate of one NIC in each direction, Gb/s; absent, as read on the node."""
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    """Ratio of the rates of all NICs to that of the fabric between the nodes: 1 for full bisection."""


# Options of runtimes that are commands on a node.
MOUNT_FLAGS = {"docker": "--volume", "enroot": "--mount", "apptainer": "--bind"}


class Container(Strict):
    """The image that a framework runs in."""

    runtime: Literal["pyxis", "enroot", "docker", "apptainer"]
    """How the image is started: an option of srun, or a command on each node."""
    image: Annotated[str, Field(min_length=1)]
    """Name in a registry, with a digest where one is known, or a file."""
    mounts: tuple[str, ...] = ()
    """Folders of the node that are mounted in the container; the run's folder always is, at its own path."""
    workdir: str | None = None
    """Folder in which commands start; absent, the run's folder."""
    mount_home: bool = False
    """Mount the user's home, too."""
    args: tuple[str, ...] = ()
    """Further arguments of the container runtime."""


class Environment(Strict):
    """One framework's place on one system. Every path is on the nodes, inside the container where there is one."""

    root: str | None = None
    """Checkout or installation of the framework, `{root}`."""
    data: str | None = None
    """Folder of its data sets, `{data}`."""
    paths: Mapping[str, str] = {}
    """Further paths by name, `{name}`."""
    python: str = "python"
    """Python interpreter of the framework."""
    setup: tuple[str, ...] = ()
    """Shell lines that make the framework usable (`module load`, `conda activate`), run outside of any container."""
    env: Mapping[str, str] = {}
    """Environment variables of the framework's ranks, over those of the system's `env`."""
    env_file: str | None = None
    """File of `export` lines that the shell reads before `environments.*.env` is set."""
    secrets: Mapping[str, str] = {}
    """Environment variables whose value is in a file on the node; the value is never written down."""
    container: Container | None = None
    """Container image that the framework runs in; absent, it runs without a container."""
    rendezvous_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    """Suffix of a node's name in its fast network, such as JUWELS' `i`."""
    launcher_args: tuple[str, ...] = ()
    """Further arguments of torchrun or deepspeed, which start the ranks."""

    @property
    def names(self) -> dict[str, str]:
        """Names that a recipe may write in braces."""
        own = {"root": self.root, "data": self.data, "python": self.python}
        return {name: value for name, value in own.items() if value is not None} | dict(self.paths)


def fill_in(text: str, names: Mapping[str, str], where: str) -> str:
    """Replace every `{name}` of a text. Raises ConfigError: there is no such name, or a brace is not closed."""
    try:
        return text.format_map(names)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {text!r} uses {error}; known are {', '.join(sorted(names))}: add it to the environment of "
            f"this engine in the system's file (root, data, or under paths)"
        ) from error
