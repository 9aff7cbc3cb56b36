"""Text that others wrote, such as a log's line or an exception of a rank, made fit to be shown and kept."""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pytest_llmbench.core.schema import Strict

REDACTED = "***"
# What a terminal would obey. What is shortened at its end is one, too.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)"  # colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # titles, device control
    r"|\x1b[ -/]*[0-~]"
)
# Control characters but tab and line feed, what turns the direction of writing, and halves of characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Mark(Strict):
    """Marks that find a secret's value in a text without holding it.

    Attributes:
        length: of the value, in characters.
        salt, digest: hexadecimal.
    """

    length: int
    salt: str
    digest: str


def harmless(text: str) -> str:
    """A text that no terminal obeys and any report can hold: other control characters are spelled out, as in Python."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), plain)


def redacted(text: str, values: Collection[str], marks: Iterable[Mark] = ()) -> str:
    """A text with `***` instead of each secret, given by its value or by its mark."""
    for value in sorted(values, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, REDACTED)
    for mark in marks:
        text = _without(text, mark)
    return text


def mark_of(value: str) -> Mark:
    """The mark of a secret's value."""
    salt = secrets.token_hex(16)
    return Mark(length=len(value), salt=salt, digest=_digest(value, salt))


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed; the keys of mappings stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value


def _without(text: str, mark: Mark) -> str:
    start, kept = 0, []
    while start < len(text):
        hit = _digest(text[start : start + mark.length], mark.salt) == mark.digest
        kept.append(REDACTED if hit else text[start])
        start += mark.length if hit else 1
    return "".join(kept)


def _digest(value: str, salt: str) -> str:
    return hashlib.blake2b(value.encode(errors="surrogatepass"), key=bytes.fromhex(salt), digest_size=16).hexdigest()
