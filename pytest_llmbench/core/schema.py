"""Base of every YAML file of ours: strict models, and errors that name file, key and legal values."""

import ast
import json
import math
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema

from pytest_llmbench.core.durations import format_minutes, parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.quantity import UNITS, Quantity


class Strict(BaseModel):
    """A model with a fixed set of keys: an unknown key is an error, and a value is never changed later.

    In JSON, numbers that are not finite are the texts `NaN`, `Infinity` and `-Infinity`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, ser_json_inf_nan="strings")


def to_json(model: BaseModel, **how: Any) -> str:
    """Return a model as JSON; `how` is as for `model_dump_json`.

    Names and paths may have bytes that are not UTF-8, which no JSON can hold: they are spelled out in hexadecimal.
    """
    try:
        return model.model_dump_json(**how)
    except ValueError:  # pydantic's PydanticSerializationError
        indent = how.pop("indent", None)
        return json.dumps(_spell_out(model.model_dump(mode="json", **how)), indent=indent, ensure_ascii=False)


def _spell_out(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        case dict():
            return {_spell_out(key): _spell_out(item) for key, item in value.items()}
        case list() | tuple():
            return [_spell_out(item) for item in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class NoOptions(Strict):
    """The options of an engine or a check that has none."""


class Document(Strict):
    """A JSON file that a session writes, and that a later program reads."""

    title: ClassVar[str]
    """The name of the file in messages."""
    schema_version: Literal[1] = 1
    """Version of the schema of this file; a reader refuses any other."""

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read such a file. Raises ConfigError: it is missing, cut, of another schema version, or something else."""
        try:
            return cls.model_validate_json(read_regular(Path(path)))
        except (OSError, ValidationError) as error:
            version = cls.model_fields["schema_version"].default
            raise ConfigError(f"{path}: no {cls.title} of schema version {version}: {error}") from error


def _as_quantity(value: object) -> Quantity:
    try:
        if isinstance(value, Quantity | str):
            return Quantity(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(str(error)) from error
    raise ValueError(f"{value!r} has no unit; write it with one, such as '{value} words/s'")


def _as_minutes(value: object) -> int:
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return parse_minutes(str(value))
    except ConfigError as error:
        raise ValueError(str(error)) from error
    raise ValueError(f'{value!r} is not a time limit; write it in quotes, such as "00:30:00"')


# The schemas that editors get of both check less than the loader.
_QUANTITY = {
    "type": "string",
    "pattern": rf"^\s*[+-]?[0-9.,_]+([eE][+-]?[0-9]+)?\s*[KkMG]?\s*({'|'.join(map(re.escape, UNITS))})\s*$",
    "examples": ["200K words/s", "5 %"],
}
_MINUTES = {
    "anyOf": [{"type": "string", "pattern": "^[0-9:-]+$"}, {"type": "integer", "minimum": 1}],
    "examples": ["00:30:00"],
}

_EXACT = PlainSerializer(lambda quantity: quantity.exact)
QuantityField = Annotated[Quantity, BeforeValidator(_as_quantity), _EXACT, WithJsonSchema(_QUANTITY)]
MinutesField = Annotated[int, BeforeValidator(_as_minutes), PlainSerializer(format_minutes), WithJsonSchema(_MINUTES)]

# Names become folders, test ids and Slurm job names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class KeyFault:
    """One thing that is wrong in a file."""

    where: str  # the file, and the part of it that was read
    key: str  # the key in that part, dotted; empty for the whole of it
    message: str  # the fault, and the legal values

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.message}" if self.key else f"{self.where}: {self.message}"


class FaultsError(ConfigError):
    """Plain data that a model refuses.

    Attributes:
        faults: all that is wrong with it.
    """

    def __init__(self, faults: Iterable[KeyFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


def validate(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """Build `model` from plain data.

    Raises FaultsError with a line for each problem: `where`, the key, and the legal ones for an unknown key.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise FaultsError(_explain(model, error, where)) from error


def descriptions(kind: type) -> dict[str, str]:
    """The docstrings under the fields of a model, a dataclass or an enumeration, inherited ones included, by field.

    They are read from the source when a schema or a table is made. Pydantic's `use_attribute_docstrings` would read
    them at each import, which costs every rank 0.07 s.
    """
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        file = getattr(sys.modules.get(owner.__module__), "__file__", None)
        if owner is BaseModel or owner.__module__ == "builtins" or file is None:
            continue
        for field, text in pairwise(_classes_in(file).get(owner.__name__, ())):
            name = field.target if isinstance(field, ast.AnnAssign) else next(iter(getattr(field, "targets", ())), None)
            if isinstance(name, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[name.id] = " ".join(str(text.value.value).split())
    return texts


@cache
def _classes_in(file: str) -> dict[str, Sequence[ast.stmt]]:
    """The bodies of the classes of a source file, by name."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`: mappings are merged key by key, other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> Iterator[KeyFault]:
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            owner = _model_at(model, problem["loc"][:-1])
            message = unknown("key", problem["loc"][-1], owner.model_fields if owner else ())
        elif problem["type"] == "missing":
            message = "missing"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            if not isinstance(problem["input"], Mapping | list | tuple):
                message += f" (given: {problem['input']!r})"
        yield KeyFault(where, path, message)


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model at a location of pydantic's: the one with an unknown key."""
    models = [model]
    for part in loc:
        fields = [owner.model_fields[part] for owner in models if isinstance(part, str) and part in owner.model_fields]
        if fields:
            models = [inner for field in fields for inner in models_in(field.annotation)]
        else:  # a list index, a mapping's key, or the tag of one model of a union
            tagged = (
                owner for owner in models for field in owner.model_fields.values()
                if part in typing.get_args(field.annotation)
            )  # fmt: skip
            models = list(tagged) or models
    return models[0] if models else None


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from models_in(inner)
