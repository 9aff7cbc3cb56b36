"""Plain data between the login node and ranks: JSON into dataclasses and back, by next to no imports."""

import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar, Union

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.files import PRIVATE, write_text


def _fault_of_count(value: int) -> str:
    return "" if value >= 1 else "must be at least 1"


def _fault_of_seconds(value: float) -> str:
    return "" if value > 0 else "must be greater than 0"


Positive = Annotated[int, _fault_of_count]
PositiveSeconds = Annotated[float, _fault_of_seconds]

T = TypeVar("T")

_WORDS: Mapping[type, str] = {
    str: "text", dict: "mapping", list: "list", int: "whole number", float: "number", bool: "truth value",
}  # fmt: skip


class _NotThat(Exception):  # noqa: N818 - never leaves this module
    """A value that does not fit, with its place.

    Attributes:
        key: dotted; empty for the whole.
        why: in words.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(key, why)
        self.key, self.why = key, why


def read_json(text: bytes | str, *, once: bool = False) -> Any:
    """Read JSON that others wrote.

    Args:
        text: the JSON.
        once: refuse a key that an object has twice; otherwise the last value counts, as JSON usually has it.

    Raises:
        ValueError: it is not JSON, nested without end, or has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: two values of one key cannot both be what was written."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return made


def read_plain(kind: type[T], path: Path) -> T:
    """Read a file of one dataclass.

    Raises:
        ConfigError: the file cannot be read, or a key in it is unknown, missing, or of another type.
    """
    try:
        data = read_json(path.read_bytes(), once=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        made: T = _made(kind, data, "")
    except _NotThat as error:
        raise ConfigError(f"{path}: {error.key}: {error.why}" if error.key else f"{path}: {error.why}") from error
    return made


def write_plain(path: Path, value: object) -> None:
    """Write a dataclass as JSON, for this user alone, so that a reader sees the whole of it or nothing.

    Raises:
        ConfigError: JSON cannot hold a value in it as it is; see `refuse_unplain`.
    """
    refuse_unplain(value, str(path))
    write_text(path, f"{json_of(value, indent=1)}\n", mode=PRIVATE)


def json_of(value: object, indent: int | None = None) -> str:
    """A dataclass, and those inside it, as strict JSON; without `indent`, as one line.

    Raises:
        ValueError: a number in it is not finite.
    """
    between = (",", ":") if indent is None else None
    return json.dumps(value, default=_inside, ensure_ascii=False, allow_nan=False, indent=indent, separators=between)


def refuse_unplain(value: object, where: str) -> None:
    """Refuse what would not arrive as it was sent.

    Raises:
        ConfigError: a number in it is not finite, a key is not a text, or a value is neither text, number, truth value,
            list nor mapping; with its dotted key.
    """
    try:
        _refuse_unplain(value, "")
    except _NotThat as error:
        raise ConfigError(f"{where}: {error.key}: {error.why}" if error.key else f"{where}: {error.why}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested without end") from error


def _refuse_unplain(value: object, key: str) -> None:
    if value is None or isinstance(value, (bool, int, str, PurePath)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NotThat(key, f"must be a finite number (given: {value})")
        return
    if isinstance(value, (list, tuple)):
        items: Iterable[tuple[object, object]] = enumerate(value)
    elif isinstance(value, Mapping):
        items = value.items()
        if wrong := [name for name in value if not isinstance(name, str)]:
            raise _NotThat(key, f"every key must be a text (given: {wrong[0]!r:.200})")
    elif is_dataclass(value):
        items = ((each.name, getattr(value, each.name)) for each in fields(value))
    else:
        raise _NotThat(key, f"must be text, a number, a truth value, a list or a mapping (given: {value!r:.200})")
    for name, item in items:
        _refuse_unplain(item, f"{key}.{name}" if key else str(name))


def _inside(value: object) -> object:
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as plain data")


def _made(kind: Any, data: Any, key: str) -> Any:
    """Plain data as a value of a type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        made: Any = _made_of(kind, data, key)
    elif origin is Annotated:
        made = _bounded(_made(inner[0], data, key), inner[1:], key)
    elif origin in {Union, types.UnionType}:  # of one type and None
        made = None if data is None else _made(next(each for each in inner if each is not type(None)), data, key)
    elif origin is not None:
        made = _made_with(origin, inner, data, key)
    elif kind is Any:
        _refuse_unplain(data, key)
        made = data
    elif kind is float:
        made = _finite(data, key)
    else:
        made = Path(_whole(str, data, key)) if kind is Path else _whole(kind, data, key)
    return made


def _made_with(origin: Any, inner: tuple[Any, ...], data: Any, key: str) -> Any:
    """A choice of values, a tuple of any length, or a mapping of texts."""
    if origin is Literal:
        if not any(type(data) is type(each) and data == each for each in inner):
            raise _NotThat(key, unknown("value", data, inner))
        return data
    if origin is tuple:
        items = _whole(list, data, key)
        return tuple(_made(inner[0], item, f"{key}.{number}") for number, item in enumerate(items))
    return {name: _made(inner[1], item, f"{key}.{name}") for name, item in _whole(dict, data, key).items()}


def _whole(kind: type[T], data: Any, key: str) -> T:
    """A value of exactly this type: a bool must not pass for a number."""
    if type(data) is not kind:
        raise _NotThat(key, f"must be a {_WORDS[kind]} (given: {data!r:.200})")
    return data


def _finite(data: Any, key: str) -> float:
    """A number; JSON that others wrote may hold `NaN`, or one that no float can hold."""
    try:
        number = float(data) if type(data) is int else _whole(float, data, key)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _NotThat(key, f"must be a finite number (given: {data!r:.200})")
    return number


def _bounded(value: Any, faults: tuple[Callable[[Any], str], ...], key: str) -> Any:
    for fault in faults:
        if why := fault(value):
            raise _NotThat(key, f"{why} (given: {value!r})")
    return value


def _made_of(kind: type[T], data: Any, key: str) -> T:
    given, known = _whole(dict, data, key), {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # it is one
    place = f"{key}." if key else ""
    for name in given:
        if name not in known:
            raise _NotThat(f"{place}{name}", unknown("key", name, known))
    values, hints = {}, typing.get_type_hints(kind, include_extras=True)
    for name, each in known.items():
        if name in given:
            values[name] = _made(hints[name], given[name], f"{place}{name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _NotThat(f"{place}{name}", "missing")
    return kind(**values)
