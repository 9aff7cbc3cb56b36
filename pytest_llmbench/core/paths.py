"""Folders of the recipes and systems that come with the package, and paths as people see them."""

from pathlib import Path
from types import ModuleType
from typing import Literal

from pytest_llmbench.core.errors import ConfigError

# In a checkout this is a link to the top-level folder; a wheel has its files.
SUITES = (Path(__file__).parents[1] / "suites").resolve()


def shipped(kind: Literal["recipes", "systems", "schemas"]) -> Path:
    """The folder of YAML files of our own, or of the JSON Schemas of such files."""
    return SUITES / kind


def folder_of(thing: object) -> Path:
    """The folder of a package that holds YAML files; it needs no `__init__.py`.

    Raises ConfigError if it is not a package.
    """
    if not isinstance(thing, ModuleType) or not hasattr(thing, "__path__"):
        raise ConfigError("it is not a package; give the dotted name of a folder with YAML files")
    return Path(next(iter(thing.__path__))).resolve()


def shown_path(path: Path) -> str:
    """A path as messages have it: relative to the current folder if it is in there."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
