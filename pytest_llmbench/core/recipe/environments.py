"""Environments: where a framework lives that runs as a command of its own. Part of a system's file."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Strict


class Container(Strict):
    """The image that a framework runs in."""

    runtime: Literal["pyxis", "enroot", "docker"]
    """How the image starts: an option of srun, or a command on each node."""
    image: Annotated[str, Field(min_length=1)]
    """A registry's name, with a digest where one is known, or a file."""
    mounts: tuple[str, ...] = ()
    """Folders of the node to see inside; the run's folder always is, at its own path."""
    workdir: str | None = None
    """The folder commands start in; absent, the run's."""
    mount_home: bool = False
    """Whether the user's home is there, too."""
    args: tuple[str, ...] = ()
    """Further arguments of the runtime."""


class Environment(Strict):
    """One framework's place on one system. Every path is on the nodes, inside the container where there is one."""

    root: str | None = None
    """The framework's checkout or installation, `{root}`."""
    data: str | None = None
    """The folder of its data sets, `{data}`."""
    paths: Mapping[str, str] = {}
    """Further places by name, `{name}`."""
    python: str = "python"
    """Its interpreter."""
    setup: tuple[str, ...] = ()
    """Make it usable (`module load`, `conda activate`), outside of any container."""
    env: Mapping[str, str] = {}
    """Environment variables of its ranks, over `env`."""
    env_file: str | None = None
    """A file of `export` lines, read by the shell before `environments.*.env` is set."""
    secrets: Mapping[str, str] = {}
    """Environment variables whose value is in a file on the node; the value is never written down."""
    container: Container | None = None
    """The image it runs in; without one it runs bare."""
    rendezvous_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    """Appended to a node's name to get that of its fast network, such as JUWELS' `i`."""
    launcher_args: tuple[str, ...] = ()
    """Further arguments of what starts its ranks: torchrun or deepspeed."""

    @property
    def names(self) -> dict[str, str]:
        """Names that a recipe may write in braces."""
        own = {"root": self.root, "data": self.data, "python": self.python}
        return {name: value for name, value in own.items() if value is not None} | dict(self.paths)


def fill_in(text: str, names: Mapping[str, str], where: str) -> str:
    """Replace every `{name}` of a text.

    Raises:
        ConfigError: there is no such name, or a brace is not closed.
    """
    try:
        return text.format_map(names)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {text!r} uses {error}; known are {', '.join(sorted(names))}: add it to the environment of "
            f"this engine in the system's file (root, data, or under paths)"
        ) from error
