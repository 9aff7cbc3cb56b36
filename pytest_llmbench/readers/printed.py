"""Finds the settings that programs print: in a column with dots, as the text of an object, as YAML or as JSON."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers.items import Printed, Said
from pytest_llmbench.readers.numbers import as_number

# `  num_layers ........ 12` of Megatron-LM; DeepSpeed leaves the dots out behind a long name.
_DOTTED = re.compile(
    r"(?:(?:[A-Z]+:[\w.]*:)?\s*(\w{1,60}) \.+ |.{0,200}:print\]\s+([a-z_]\w{0,60}) \.* *)(\S(?:.{0,98}\S)?)\s*",
    re.ASCII,
)
# `OptimizerConfig(optimizer='adam', lr=0.005, bf16=False)`
_OBJECT = re.compile(r"\b[A-Z]\w{0,60}(?:Config|Args)\(([a-z_]\w{0,60}=.*)\)\s*$", re.ASCII)
_NEXT = re.compile(r", (?=[a-z_]\w{0,60}=)", re.ASCII)
# `    num_layers: 12`, `    optim:` in front of a section, `    - 0.9` of a list; prose has blanks in its values.
_YAML = re.compile(
    r"(\s{2,40})(?:(-) +|([a-z_][\w.-]{0,60}):(?: +(?!--)|$))"
    r"([^\s'\"=]{1,100}|'[^']{0,100}'|\"[^\"]{0,100}\"|\$\{.{0,100}\})?(?:  \(Mcore default: .{0,200}\))?\s*",
    re.ASCII,
)
# `    "seq_len": 64,`, `    "mode": {` in front of a section, `      "moe.router.gate"` of a list.
_JSON = re.compile(
    r"(\s{1,40})(?:\"([\w.-]{1,60})\": )?(?:\"([^\"]{0,100})\"|([\w.+-]{1,40}|\[\]|\{\})|[\[{]),?\s*", re.ASCII
)
# The claim that a setting makes, and how its text is read; None if it makes none.
Table = Mapping[str, tuple[ClaimName, Callable[[str], int | float | str | None]]]


def in_dots(text: str) -> Iterator[Printed]:
    """Yield the setting of a line with dots between its name and its value."""
    if match := _DOTTED.fullmatch(text):
        yield Printed(match[1] or match[2], match[3])


def in_object(text: str) -> Iterator[Printed]:
    """Yield the settings of the object at the end of a line."""
    if match := _OBJECT.search(text):
        for name, _, value in (part.partition("=") for part in _NEXT.split(match[1])):
            yield Printed(name, value[:100].strip("'"))


def in_yaml(text: str) -> Iterator[Printed]:
    """Yield the setting of a line of YAML, with the indent that finds its section, which is without a value."""
    if (match := _YAML.fullmatch(text)) and (match[3] or match[4]):
        yield Printed(match[2] or match[3], (match[4] or "").strip("'\""), indent=len(match[1]))


def in_json(text: str) -> Iterator[Printed]:
    """Yield the setting of a line of indented JSON, as `in_yaml` does for YAML."""
    if (match := _JSON.fullmatch(text)) and (match[2] or match[3] or match[4]):
        yield Printed(match[2] or "-", match[3] or match[4] or "", indent=len(match[1]))


def with_claims(settings: Iterable[Printed], table: Table) -> Iterator[Said | Printed]:
    """Yield settings, and the claims that those of a table make."""
    for setting in settings:
        claim, read = table.get(setting.name, (None, None))
        yield replace(setting, compared=claim is not None)
        if claim and read and (value := read(setting.value)) is not None:
            yield Said(claim, value)


def in_short(text: str) -> str | None:
    """Read a number, and write it in its shortest form; None for any other text."""
    return None if (value := as_number(text)) is None else f"{value:g}"


def whole_number(text: str) -> int | None:
    """Read a whole number; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
