"""Plain data between the login node and ranks: JSON into dataclasses and back.

Pydantic would do it, and costs a process on a node twice the time to start.
"""

import contextlib
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar, Union

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.files import PRIVATE, read_regular, write_text


class NumberBounds:
    """Bounds of a number: `ge`, `gt`, `le` or `lt`; pydantic reads them, too."""

    def __init__(self, **bounds: int) -> None:
        self.bounds = bounds

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self.bounds}


Positive = Annotated[int, NumberBounds(ge=1)]
PositiveSeconds = Annotated[float, NumberBounds(gt=0)]

T = TypeVar("T")

_WORDS: Mapping[type, str] = {
    str: "text", dict: "mapping", list: "list", int: "whole number", float: "number", bool: "truth value",
}  # fmt: skip


class _MisfitError(ValueError):
    """A value that does not fit, with its dotted key; the key is empty for the whole."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)


def read_json(text: bytes | str, *, once: bool = False) -> Any:
    """Read JSON that others wrote.

    Args:
        text: the JSON.
        once: refuse a key that an object has twice; otherwise the last value counts, as JSON usually has it.

    Raises ValueError if it is not JSON, is nested without end, or has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return data


def read_plain(kind: type[T], path: Path) -> T:
    """Read a file of one dataclass.

    Raises ConfigError if the file is unreadable, or a key is unknown, missing, or of another type.
    """
    try:
        return typing.cast("T", _fit(kind, read_json(read_regular(path), once=True), ""))
    except _MisfitError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def write_plain(path: Path, value: object) -> None:
    """Write a dataclass as JSON, for this user alone, so that a reader sees the whole of it or nothing.

    Raises ConfigError as `refuse_unplain` does.
    """
    refuse_unplain(value, str(path))
    write_text(path, f"{json_of(value, indent=1)}\n", mode=PRIVATE)


def json_of(value: object, indent: int | None = None) -> str:
    """A dataclass, and those inside it, as strict JSON; without `indent`, as one line.

    Raises ValueError for a number that is not finite.
    """
    between = (",", ":") if indent is None else None
    return json.dumps(value, default=_as_json, ensure_ascii=False, allow_nan=False, indent=indent, separators=between)


def _as_json(value: object) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value) if isinstance(value, Mapping) else os.fspath(value)  # type: ignore[call-overload]  # or TypeError


def refuse_unplain(value: object, where: str) -> None:
    """Refuse a value that would not arrive as it was sent.

    Raises ConfigError with the dotted key of a number that is not finite, a key that is not a text, or a value of any
    other type than text, number, bool, list and mapping.
    """
    try:
        _refuse_unplain(value, "")
    except _MisfitError as error:
        raise ConfigError(f"{where}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested without end") from error


def _refuse_unplain(value: object, key: str) -> None:
    if isinstance(value, float):
        _finite(value, key)
    if value is None or isinstance(value, (bool, int, float, str, PurePath)):
        return
    items: Any = _as_json(value) if is_dataclass(value) else value
    if isinstance(items, (list, tuple)):
        items = dict(enumerate(items))
    elif not isinstance(items, Mapping):
        raise _MisfitError(key, f"must be text, a number, a truth value, a list or a mapping (given: {value!r:.200})")
    elif wrong := [name for name in items if not isinstance(name, str)]:
        raise _MisfitError(key, f"every key must be a text (given: {wrong[0]!r:.200})")
    for name, item in items.items():
        _refuse_unplain(item, f"{key}.{name}" if key else str(name))


def _fit(kind: Any, data: Any, key: str) -> Any:
    """Plain data as a value of a field's type: one of those that tasks and reports have."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    value = data
    if is_dataclass(kind):
        value = _fit_fields(kind, data, key)
    elif kind is Any:
        _refuse_unplain(data, key)
    elif origin is None:
        value = Path(_exactly(str, data, key)) if kind is Path else _exactly(kind, data, key)
    elif origin is Annotated:
        value = _fit(inner[0], data, key)
        _refuse_outside(value, inner[1].bounds, key)
    elif origin in {Union, types.UnionType}:  # with None
        value = None if data is None else _fit(inner[0], data, key)
    elif origin is Literal:
        if not any(type(data) is type(choice) and data == choice for choice in inner):
            raise _MisfitError(key, unknown("value", data, inner))
    elif origin is tuple:
        value = tuple(_fit(inner[0], item, f"{key}.{at}") for at, item in enumerate(_exactly(list, data, key)))
    else:
        value = {name: _fit(inner[1], item, f"{key}.{name}") for name, item in _exactly(dict, data, key).items()}
    return value


def _fit_fields(kind: Any, data: Any, key: str) -> Any:
    known, hints = {field.name: field for field in fields(kind)}, typing.get_type_hints(kind, include_extras=True)
    prefix, values = f"{key}." if key else "", {}
    for name, value in _exactly(dict, data, key).items():
        if name not in known:
            raise _MisfitError(f"{prefix}{name}", unknown("key", name, known))
        values[name] = _fit(hints[name], value, f"{prefix}{name}")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise _MisfitError(f"{prefix}{name}", "missing")
    return kind(**values)


def _refuse_outside(value: float, bounds: Mapping[str, int], key: str) -> None:
    """Refuse a number out of the bounds that tasks have: `ge` and `gt`."""
    if value < bounds.get("ge", -math.inf):
        raise _MisfitError(key, f"must be at least {bounds['ge']} (given: {value!r})")
    if value <= bounds.get("gt", -math.inf):
        raise _MisfitError(key, f"must be greater than {bounds['gt']} (given: {value!r})")


def _exactly(kind: type[T], data: Any, key: str) -> T:
    """A value of exactly this type: a bool must not pass for a number. A float may be written as a whole number."""
    if kind is float and type(data) in {int, float}:
        data = _finite(data, key)
    if type(data) is not kind:
        raise _MisfitError(key, f"must be a {_WORDS[kind]} (given: {data!r:.200})")
    return data


def _finite(data: float, key: str) -> float:
    """A number; JSON that others wrote may hold `NaN`, or one that no float can hold."""
    with contextlib.suppress(OverflowError):
        if math.isfinite(number := float(data)):
            return number
    raise _MisfitError(key, f"must be a finite number (given: {data!r:.200})")
