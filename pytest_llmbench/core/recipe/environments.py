"""Environments: where a framework lives that runs as a command of its own. Part of a system's file."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Strict


class Container(Strict):
    """The image that a framework runs in.

    Attributes:
        runtime: how the image starts: an option of srun, or a command on each node.
        image: a registry's name, with a digest where one is known, or a file.
        mounts: folders of the node to see inside; the run's folder always is, at its own path.
        workdir: the folder commands start in; absent, the run's.
        mount_home: whether the user's home is there, too.
        args: further arguments of the runtime.
    """

    runtime: Literal["pyxis", "enroot", "docker"]
    image: Annotated[str, Field(min_length=1)]
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    mount_home: bool = False
    args: tuple[str, ...] = ()


class Environment(Strict):
    """One framework's place on one system. Every path is on the nodes, inside the container where there is one.

    Attributes:
        root: the framework's checkout or installation, `{root}`.
        data: the folder of its data sets, `{data}`.
        paths: further places by name, `{name}`.
        python: its interpreter.
        setup: make it usable (`module load`, `conda activate`), outside of any container.
        env: environment variables of its ranks, over `env`.
        env_file: a file of `export` lines, read by the shell before `environments.*.env` is set.
        secrets: environment variables whose value is in a file on the node; the value is never written down.
        container: the image it runs in; without one it runs bare.
        rendezvous_suffix: appended to a node's name to get that of its fast network, such as JUWELS' `i`.
        launcher_args: further arguments of what starts its ranks: torchrun or deepspeed.
    """

    root: str | None = None
    data: str | None = None
    paths: Mapping[str, str] = {}
    python: str = "python"
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    env_file: str | None = None
    secrets: Mapping[str, str] = {}
    container: Container | None = None
    rendezvous_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    launcher_args: tuple[str, ...] = ()

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
