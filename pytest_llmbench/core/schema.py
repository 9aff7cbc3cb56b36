"""What every YAML file of ours shares: strict models, and errors that name file, key and legal values."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from pytest_llmbench.core.durations import format_minutes, parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import Quantity


class Strict(BaseModel):
    """A model that knows its keys: an unknown one is an error, and a value is never changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _as_quantity(value: object) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, str):
        return Quantity(value)
    raise ConfigError(f"{value!r} has no unit; write it with one, such as '{value} words/s'")


def _as_minutes(value: object) -> int:
    # YAML 1.1 reads an unquoted 1:30:00 as the number 5400: ambiguous, so only text and whole minutes.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return parse_minutes(value)
    raise ConfigError(f'{value!r} is no time limit; write it in quotes, such as "00:30:00"')


def _guard(convert: Any) -> BeforeValidator:
    """Let a converter's ConfigError reach pydantic as the ValueError it collects."""

    def run(value: object) -> object:
        try:
            return convert(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(run)


QuantityField = Annotated[Quantity, _guard(_as_quantity), PlainSerializer(str)]
MinutesField = Annotated[int, _guard(_as_minutes), PlainSerializer(format_minutes)]

M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: no such file, not UTF-8, not YAML, or not a mapping.
    """
    try:
        data = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 - a SafeLoader underneath
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, found {type(data).__name__}")
    return data


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
    """A safe loader that refuses a key given twice, where YAML would keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def validate(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """Build `model` from plain data.

    Raises:
        ConfigError: one line per problem, each with `where`, the key, and for an unknown key the legal ones.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(model, error, where))) from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`: mappings are merged key by key, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> Iterator[str]:
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            owner = _model_at(model, problem["loc"][:-1])
            message = unknown("key", problem["loc"][-1], owner.model_fields if owner else ())
        elif problem["type"] == "missing":
            message = "missing"
        else:
            message = problem["msg"].removeprefix("Value error, ") + f" (given: {problem['input']!r})"
        yield f"{where}: {path}: {message}" if path else f"{where}: {message}"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Follow a pydantic error location down to the model whose key was unknown."""
    found: type[BaseModel] | None = model
    for part in loc:
        if found is None or not isinstance(part, str) or part not in found.model_fields:
            continue  # a list index, a mapping's key, or a union's tag
        found = next(_models_in(found.model_fields[part].annotation), None)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
