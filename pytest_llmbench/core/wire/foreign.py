"""Secrets in text that others wrote, such as a log's line or an exception of a rank, and its ways into records."""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pytest_llmbench.core.schema import Strict

REDACTED = "***"


class Mark(Strict):
    """Marks that find a secret's value in a text without holding it.

    Attributes:
        length: of the value, in characters.
        salt, digest: hexadecimal.
    """

    length: int
    salt: str
    digest: str


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
