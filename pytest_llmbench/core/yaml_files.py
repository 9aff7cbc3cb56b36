"""Foreign YAML, read safely: what YAML would silently misread is refused."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import open_regular

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
# More than any file of people has. Its aliases count as often as they are used: ten lines can stand for 10^9 nodes.
_LARGEST_BYTES, _MOST_NODES, _DEEPEST = 1 << 24, 100_000, 50


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping. Raises ConfigError: it must be a mapping, or as `read_yaml_value` has it."""
    data = read_yaml_value(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, found {type(data).__name__}")
    return data


def read_yaml_value(path: Path) -> Any:
    """Read a YAML file of any content.

    Raises ConfigError if the file is missing, not UTF-8 or not YAML, has a key twice or a number to base 60 or 8, or
    is larger than files of people are.
    """
    try:
        with open_regular(path) as file:
            return _parse(file.read(_LARGEST_BYTES + 1))
    # The last four: PyYAML's own conversions, of a 30th of February or of nesting without end.
    except (OSError, yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """The message of an error of `read_yaml_value` in one line, with the lines of the file."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        began = error.context_mark and f" ({error.context} from line {error.context_mark.line + 1})"
        place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
        return f"{place}: {error.problem}{began or ''}"
    return getattr(error, "strerror", None) or str(error)


def _parse(text: bytes) -> Any:
    _refuse_bombs(text)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader underneath


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
    """A safe loader that refuses what YAML would silently misread."""

    def get_single_data(self) -> Any:
        # Before merge keys (`<<`) are resolved: a mapping may override the keys that they bring in.
        root = self.get_single_node()
        for node in _nodes(root):
            if isinstance(node, yaml.MappingNode):
                _refuse_repetition(node)
            elif isinstance(node, yaml.ScalarNode):
                _refuse_odd_bases(node)
        return None if root is None else self.construct_document(root)


def _refuse_bombs(text: bytes) -> None:
    """Refuse a document that would exhaust memory or the C stack, before it is built."""
    if len(text) > _LARGEST_BYTES:
        raise ValueError(f"larger than {_LARGEST_BYTES >> 20} MiB")
    sizes: dict[str, tuple[int, int]] = {}  # nodes and depth of what an anchor names
    open_: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    for event in yaml.parse(text, Loader=_Loader):
        anchor, nodes, depth = getattr(event, "anchor", None), 1, 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, 1, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes, depth = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == name for name, *_ in open_):
                raise ValueError(f"*{anchor} is inside of &{anchor}: it has no end")
            nodes, depth = sizes.get(str(anchor), (1, 1))
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if not isinstance(event, yaml.CollectionStartEvent):
            sizes |= {anchor: (nodes, depth)} if anchor else {}
            outer, *before = open_[-1]
            open_[-1] = outer, before[0] + nodes, max(before[1], depth + 1)
        if len(open_) + depth > _DEEPEST or open_[-1][1] > _MOST_NODES:
            raise ValueError(f"nested deeper than {_DEEPEST}, or more than {_MOST_NODES} values, aliases included")


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield every node of a document once, in its order; an alias is the node of its anchor."""
    waiting = [] if root is None else [root]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            waiting.extend(part for pair in reversed(node.value) for part in reversed(pair))
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(reversed(node.value))


def _refuse_repetition(node: yaml.MappingNode) -> None:
    """Refuse a duplicate key, of which YAML would keep the last value."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            continue
        if (key.tag, key.value) in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
        seen.add((key.tag, key.value))


def _refuse_odd_bases(node: yaml.ScalarNode) -> None:
    """Refuse a number to base 60 or 8: YAML 1.1 reads 1:30:00 without quotes as 5400, and 030 as 24."""
    base = 60 if ":" in node.value else 8 if _OCTAL.fullmatch(node.value) else None
    if node.tag in _NUMBERS and base is not None:
        problem = f'{node.value} without quotes is a number to base {base}; write "{node.value}", or without zeros'
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
