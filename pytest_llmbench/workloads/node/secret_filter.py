"""Runs programs in the framework's environment, and removes the values of secrets from everything that is written.

The framework's shell and interpreter are those of a run's script: after its setup, inside its container.
"""

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.core.wire.foreign import LOGIN
from pytest_llmbench.workloads.node.processes import ProgramResult, ask

_SECRET_NAME = re.compile("token|key|passw|passphrase|secret|credential|auth|cookie", re.IGNORECASE)
# A shorter value under the name of a secret is a switch, such as `TOKENIZERS_PARALLELISM=false`. Hiding it would hide
# every text with `false` or `1` in it.
_SHORTEST = 8
_LONGEST = 1000


def is_secret(name: str, declared: Collection[str]) -> bool:
    """True if a variable is declared a secret or has the name of one."""
    return name in declared or _SECRET_NAME.search(name) is not None


def secret_values(environ: Mapping[str, str], declared: Collection[str]) -> frozenset[str]:
    """Return the values to hide: declared secrets, long values under the name of a secret, and passwords of URLs.

    For a value of several lines, such as a key file, each long line is a secret.
    """
    kept = set()
    for name, value in environ.items():
        text = value.strip()
        if text and is_secret(name, declared) and (name in declared or len(text) >= _SHORTEST):
            lines = {line.strip() for line in text.splitlines() if len(line.strip()) >= _SHORTEST}
            kept |= {text, printable(text), harmless(text)} | lines
        passwords = (login[2:-1].partition(":")[2] for login in LOGIN.findall(text))
        kept |= {password for password in passwords if len(password) >= _SHORTEST}
    return frozenset(kept - {""})  # left by a secret of control characters alone; every text contains it


def read_secrets(files: Mapping[str, str]) -> dict[str, str]:
    """Read the values of declared secrets, by variable; a secret without a readable file is left out."""
    secrets = {}
    for name, path in files.items():
        try:
            if Path(path).is_file():  # reading a pipe would block
                # The same text as a shell's "$(<file)".
                text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
                secrets[name] = text.rstrip("\n").replace("\0", "")
        except OSError:
            continue
    return secrets


def contains_secret(text: str, values: Collection[str]) -> bool:
    """True if a text contains the value of a secret."""
    return any(value in text for value in values)


def disclosed(facts: Mapping[str, str], values: Collection[str]) -> dict[str, str]:
    """Return the facts without a secret in them, each as one printable line."""
    lines = {name: printable(value) for name, value in facts.items() if not contains_secret(value, values)}
    return {name: line for name, line in lines.items() if not contains_secret(line, values)}


def printable(text: str) -> str:
    """Return a text as one printable line, without the login of a URL."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return LOGIN.sub("//", " ".join(line.split()))[:_LONGEST]


def in_shell(task: CommandTask, env: Mapping[str, str], lines: str, timeout_s: float) -> ProgramResult:
    """Run shell lines in the framework's environment; the first that fails ends them."""
    return _there(task, env, f"bash -ec {shlex.quote(lines)}", timeout_s)


def in_python(task: CommandTask, env: Mapping[str, str], program: str, timeout_s: float) -> ProgramResult:
    """Run a program with the framework's interpreter."""
    return _there(task, env, f"{task.python} -c {shlex.quote(program)}", timeout_s)


def environment(task: CommandTask, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the framework's setup starts from, with the secrets that can be read."""
    return {**env, **task.env, **read_secrets(task.secrets)}


def _there(task: CommandTask, env: Mapping[str, str], command: str, timeout_s: float) -> ProgramResult:
    script = "\n".join(["set -eo pipefail", *task.setup, f"{task.inside} {command}".strip()])
    return ask(["bash", "-c", script], environment(task, env), timeout_s)
