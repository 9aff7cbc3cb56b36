"""Finds all faults of a recipe file or a system file for its author, where a session stops at the first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pytest_llmbench.checks.base import CHECKS, get_check
from pytest_llmbench.cluster.recipes import check_recipes
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import ExtensionError
from pytest_llmbench.core.recipe.recipes import Recipe, RecipeFamily, Scale, in_file
from pytest_llmbench.core.schema import FaultsError, validate
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.engines.base import get_engine


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFault:
    """One thing that is wrong in a file."""

    file: Path  # the file
    key: str  # the key, dotted from the top of the file; empty for the whole of it
    message: str  # the fault, and the legal values
    line: int | None = None  # its line, from 1; None for a fault of the whole file, or a key that is missing

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"file": str(self.file), "line": self.line, "key": self.key, "message": self.message}

    def __str__(self) -> str:
        line = f":{self.line}" if self.line is not None else ""
        return harmless(f"{self.file}{line}: {f'{self.key}: ' if self.key else ''}{self.message}")


def vet(path: Path) -> list[FileFault]:
    """Find the faults of a file, each once, in the order of their discovery."""
    try:
        data = read_yaml(path)
    except ConfigError as error:
        return [FileFault(file=path, key="", message=str(error).removeprefix(f"{path}: "))]
    if {"recipes", "family"} & data.keys():
        faults = list(_family_faults(path, data))
    elif {"name", "cluster"} & data.keys():
        faults = list(_system_faults(path, data))
    else:
        message = "neither a recipe file, with the keys family and recipes, nor a system file, with name and cluster"
        faults = [FileFault(file=path, key="", message=message)]
    root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    return [replace(fault, line=_line_of(root, fault.key)) for fault in dict.fromkeys(faults)]


def _refused(model: type[BaseModel], data: Mapping[str, Any], path: Path, under: str = "") -> list[FileFault]:
    """Faults that a model finds in a block of the file, which is under a dotted key."""
    try:
        validate(model, data, "")
    except FaultsError as error:
        keys = ((f"{under}.{fault.key}" if under else fault.key, fault.message) for fault in error.faults)
        return [FileFault(file=path, key=key.rstrip("."), message=message) for key, message in keys]
    return []


def _system_faults(path: Path, data: Mapping[str, Any]) -> Iterator[FileFault]:
    if faults := _refused(System, data, path):
        yield from faults
        return
    for name, settings in System.model_validate(data).validation.items():
        key = f"validation.{name}"
        try:
            check = get_check(name)
        except ExtensionError:
            continue  # only a session that selects the check needs it
        except ConfigError:
            yield FileFault(file=path, key=key, message=unknown("check", name, CHECKS.usable()))
            continue
        yield from _refused(check.options, settings.options, path, f"{key}.options")


def _family_faults(path: Path, data: Mapping[str, Any]) -> Iterator[FileFault]:
    if faults := _refused(RecipeFamily, data, path):
        yield from faults
        return
    family = RecipeFamily.model_validate(data)
    for name in family.recipes:
        try:
            laid_out = family.laid_out(name, path)
        except ConfigError as error:
            yield FileFault(file=path, key=f"recipes.{name}", message=str(error).removeprefix(f"{path}: "))
            continue
        for scale, keys in laid_out.items():
            yield from _recipe_faults(path, family, name, scale, keys)


def _recipe_faults(
    path: Path, family: RecipeFamily, name: str, scale: Scale, keys: Mapping[str, Any]
) -> Iterator[FileFault]:
    """The faults of one recipe at one scale, each at its key in the recipe, in `defaults` or in `smoke`."""
    blocks = {f"recipes.{name}": family.recipes[name], "defaults": family.defaults}
    blocks = {"smoke": family.smoke, **blocks} if scale == "smoke" else blocks

    def fault_at(key: str, message: str) -> FileFault:
        holders = (block for block, content in blocks.items() if key and _has(content, key.split(".")))
        block = next(holders, f"recipes.{name}")
        return FileFault(file=path, key=f"{block}.{key}".rstrip("."), message=message)

    try:
        engine = get_engine(str(keys.get("engine")))
    except ExtensionError:
        engine = None  # only a session that plans a run of the recipe needs the engine
    except ConfigError as error:
        engine = None
        if "engine" in keys:
            yield fault_at("engine", str(error))
    try:
        recipe = validate(Recipe, keys, in_file(path, name, scale))
        if engine is not None:
            check_recipes([recipe])
    except FaultsError as error:
        own = (fault for fault in error.faults if not fault.where.endswith(": options"))
        yield from (fault_at(fault.key, fault.message) for fault in own)
    except ConfigError as error:
        yield fault_at("references", str(error).removeprefix(f"recipe {name}, ").removeprefix(f"recipe {name}: "))
    options = keys.get("options", {})
    if engine is not None and isinstance(options, Mapping):
        yield from (fault_at(fault.key, fault.message) for fault in _refused(engine.options, options, path, "options"))


def _has(block: Any, parts: Sequence[str]) -> bool:
    """True if a block has the key that these parts lead to. One of them may be the kind of a union instead of a key."""
    if not parts:
        return True
    first, *rest = parts
    if isinstance(block, Mapping) and first in block:
        return _has(block[first], rest)
    if isinstance(block, Mapping) and rest and rest[0] in block:
        return _has(block, rest)
    if isinstance(block, list) and first.isdecimal() and int(first) < len(block):
        return _has(block[int(first)], rest)
    return False


def _line_of(root: yaml.Node | None, key: str) -> int | None:
    """The line of a dotted key, or of the last key on the way to it that is there; None for the whole file."""
    node, line, rest = root, None, key
    while rest and (inner := _inner(node, rest)) is not None:
        node, line, rest = inner
    return line


def _inner(node: yaml.Node | None, rest: str) -> tuple[yaml.Node, int, str] | None:
    """The node of the first part of a dotted key, its line, and the other parts; names of recipes may have dots."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if rest == str(name.value) or rest.startswith(f"{name.value}."):
                return value, name.start_mark.line + 1, rest[len(str(name.value)) + 1 :]
    first, _, others = rest.partition(".")
    if isinstance(node, yaml.SequenceNode) and first.isdecimal() and int(first) < len(node.value):
        item = node.value[int(first)]
        return item, item.start_mark.line + 1, others
    return None
