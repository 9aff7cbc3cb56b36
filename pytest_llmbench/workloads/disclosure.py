"""What may be written down of an environment: never the value of a secret, under whatever name it turns up."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_SECRET_NAME = re.compile("token|key|passw|passphrase|secret|credential|auth|cookie", re.IGNORECASE)
# A shorter value under a name that only looks like a secret's is a switch: `TOKENIZERS_PARALLELISM=false`. Hiding
# every text with `false` or `1` in it would leave nothing to write.
_SHORTEST = 8
# `user:password@` of a URL; what stands before the digest of an image looks the same.
_LOGIN = re.compile(r"//[^/@\s]*:[^/@\s]*@(?!sha256:)")
_LONGEST = 1000


def is_secret(name: str, declared: Collection[str]) -> bool:
    """Whether a variable is declared a secret or has the name of one."""
    return name in declared or _SECRET_NAME.search(name) is not None


def secret_values(environ: Mapping[str, str], declared: Collection[str]) -> frozenset[str]:
    """The values to keep: those of every declared secret, and long ones under the name of a secret."""
    kept = set()
    for name, value in environ.items():
        text = value.strip()
        if text and is_secret(name, declared) and (name in declared or len(text) >= _SHORTEST):
            kept |= {text, printable(text)}
    return frozenset(kept)


def tells(text: str, values: Collection[str]) -> bool:
    """Whether a text has the value of a secret in it."""
    return any(value in text for value in values)


def disclosed(facts: Mapping[str, str], values: Collection[str]) -> dict[str, str]:
    """The facts as they may be written: in one printable line each, without those that tell a secret."""
    lines = {name: printable(value) for name, value in facts.items() if not tells(value, values)}
    return {name: line for name, line in lines.items() if not tells(line, values)}


def printable(text: str) -> str:
    """A text in one line that any report can hold, without the login of a URL."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return _LOGIN.sub("//", " ".join(line.split()))[:_LONGEST]
