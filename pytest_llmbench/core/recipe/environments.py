"""Environments: where a framework lives that runs as a command of its own. Part of a system's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Strict


class Container(Strict):
    """The image that a framework runs in.

    Attributes:
        runtime: runtime that starts it: `pyxis` (an option of srun), `enroot` or `docker`.
        image: a registry's name, with a digest where one is known, or a file such as `/apps/image.sqsh`.
        mounts: `from:to` or `from:to:flags`; the run's folder is always mounted at its own path.
        workdir: the folder commands start in; by default the run's.
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
        root: the framework's checkout or installation.
        data: the folder of its data sets.
        paths: further folders or files by name; a recipe speaks of `{data}`, `{root}` and these.
        python: its interpreter.
        setup: shell lines that make it usable (`module load`, `conda activate`), outside any container.
        env: environment variables of its ranks.
        env_file: a file of `export` lines, read by the shell before `env` is set.
        secrets: environment variables by the file that holds the value; files are read on the node, values are
            never written or printed.
        container: the image it runs in; without one it runs bare.
        rendezvous_suffix: appended to a node's name to get that of its fast network, such as JUWELS' `i`.
        launcher_args: further arguments of whatever starts its ranks.
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
            f"{where}: {text!r} speaks of {error}; known are {', '.join(sorted(names))}: add it to the environment of "
            f"this engine in the system's file (root, data, or under paths)"
        ) from error
