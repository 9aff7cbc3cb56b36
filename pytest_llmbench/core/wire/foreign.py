"""Removes secrets from foreign text, such as a log line or an exception of a rank, before it is recorded."""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

REDACTED = "***"
# What stands before the digest of an image, `//host:port/name@sha256:`, looks like a login, too.
LOGIN = re.compile(r"//[^/@\s]{0,200}:[^/\s]{0,200}@(?!sha256:)")
# Secrets of unknown value, by what stands before them or how they begin. A name alone does not make a secret:
# `pad_token: <pad>` and `token = "$(<file)"` are kept.
_WORTH = r"(?=[^\s\"',;&]{0,200}\d)(?=[^\s\"',;&]{0,200}[A-Za-z])[^\s\"',;&$</\\][^\s\"',;&]{7,}"
_NAMES = r"token|secret|credentials?|cookie|(?:api|access|private|secret)[_-]?key"
_TELLTALE = re.compile(
    rf"""(?P<before>
        \bauthorization["']?\s{{0,9}}[:=]\s{{0,9}}["']?(?:(?:basic|bearer|token)\s{{1,9}})?+(?=\S{{6}})
      | \bbearer\s{{1,9}}(?={_WORTH})
      | (?:passw(?:or)?d|passphrase)["']?\s{{0,9}}[:=]\s{{0,9}}["']?(?=[^\s"',;&$</\\]{{4}})
      | (?:{_NAMES})["']?\s{{0,9}}[:=]\s{{0,9}}["']?(?={_WORTH})
      | (?<!\S)--[\w-]{{0,40}}(?:{_NAMES}|passw(?:or)?d)\s{{1,9}}(?={_WORTH})
    )[^\s"',;&]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BY_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|nvapi-[\w-]{20,}|sk-[\w-]{20,}"
    r"|xox[abps]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}\b|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Marks that find a secret's value in a text without holding it."""

    length: int  # of the value, in characters
    # Hexadecimal.
    salt: str
    digest: str


def redacted(text: str, values: Collection[str], marks: Iterable[Mark] = ()) -> str:
    """A text with `***` for each secret, which is found by its value, its mark or its surroundings."""
    for value in sorted(values, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, REDACTED)
    for mark in marks:
        text = _without(text, mark)
    text = LOGIN.sub(f"//{REDACTED}@", text)
    return _BY_FORM.sub(REDACTED, _TELLTALE.sub(rf"\g<before>{REDACTED}", text))


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
