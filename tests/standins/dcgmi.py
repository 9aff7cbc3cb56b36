#!/usr/bin/env python3
"""A stand-in for dcgmi: it takes the command line that the real one takes, and prints again what a file holds.

DCGMI_PRINTS names that file, which holds what `-j` prints. DCGMI_STATUS is the exit status (0 without). DCGMI_MODE
makes it another program: `hang`, `empty`, `killed`, `truncated` or `no-engine`.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_WITH_VALUE = {
    "-r": "run", "-p": "parameters", "-g": "group", "-i": "entity-id", "-c": "configfile", "-d": "debugLevel",
}  # fmt: skip
_LONG = {**dict.fromkeys((*_WITH_VALUE.values(), "host", "iterations"), True), "json": False, "verbose": False}


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    mode = env.get("DCGMI_MODE", "")
    if not argv or argv[0] != "diag":
        print("ERROR: Invalid subsystem.")
        return -2 & 0xFF
    given = _parse(argv[1:])
    _validate(given)
    if "CUDA_VISIBLE_DEVICES" in env:
        print("WARNING: CUDA_VISIBLE_DEVICES is set on dcgmi process.", file=sys.stderr)
    if mode == "hang":
        Path(f"{env['DCGMI_PRINTS']}.pid").write_text(str(os.getpid()))
        time.sleep(600)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "no-engine":
        print(f"Error: unable to establish a connection to the specified host: {given.get('host', 'localhost')}")
        return -21 & 0xFF
    text = Path(env["DCGMI_PRINTS"]).read_text() if mode != "empty" and "json" in given else ""
    sys.stdout.write(text[: len(text) // 2] if mode == "truncated" else text)
    return int(env.get("DCGMI_STATUS", "0"))


def _parse(words: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        name = {**_WITH_VALUE, "-j": "json", "-v": "verbose"}.get(word, word[2:] if word.startswith("--") else "")
        if name not in _LONG or name in given:
            _refuse(word, "Couldn't find match for argument")
        if _LONG[name] and not value:
            if not rest:
                _refuse(word, "Missing a value for this argument!")
            value = rest.pop(0)
        given[name] = value
    return given


def _validate(given: Mapping[str, str]) -> None:
    if (run := given.get("run", "")) not in {"1", "2", "3", "4"}:
        print(f'Error: requested test "{run}" was not found among possible test choices.')
        sys.exit(-30 & 0xFF)
    for each in filter(None, given.get("parameters", "").split(";")):
        if not re.fullmatch(r"[a-z_]+(\.\w+)+=.+", each):
            print(f"Error: incorrect parameter format: {each}.", file=sys.stderr)
            sys.exit(-2 & 0xFF)


def _refuse(word: str, why: str) -> NoReturn:
    sys.stderr.write(f"PARSE ERROR: Argument: {word}\n             {why}\n\nUsage: \n\n   dcgmi diag --help\n\n")
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
