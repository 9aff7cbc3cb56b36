"""A path after an option of ours is not a test: pytest must not look for its ini file next to it.

pytest decides on its ini file before it loads plugins. At that time `--system` is unknown to it, so the FILE of
`--system FILE` looks like a test to run: pytest takes the ini file next to FILE, and loses the user's own. Written
`--system=FILE`, it is one word that begins with a dash. By the time that this plugin is loaded, plugins and options of
the wrong ini file are in force, so a second session starts with the corrected words instead of the first.

pytest keeps its search for the ini file private; this is the only file that knows of it.
"""

import copy
import os
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.config.findpaths import determine_setup

from pytest_llmbench.plugin import options

_ADDOPTS = "PYTEST_ADDOPTS"


class Second:
    """The session with the corrected words, which runs instead of the first.

    Attributes:
        words: the command line.
        addopts: the new value of `PYTEST_ADDOPTS`.
    """

    def __init__(self, words: Sequence[str], addopts: Sequence[str]) -> None:
        self.words = list(words)
        self.addopts = list(addopts)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | pytest.ExitCode:
        """Run it, and return how it ends."""
        before = os.environ.get(_ADDOPTS)
        if before is not None:
            os.environ[_ADDOPTS] = shlex.join(self.addopts)
        try:
            return pytest.main(self.words, config.invocation_params.plugins)
        finally:
            if before is not None:
                os.environ[_ADDOPTS] = before


def correct(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Undo pytest's taking a path behind an option of ours for a test, before conftest files are loaded.

    The parser is without our options so far. `args` are the words that pytest will parse finally, including the ini
    file's `addopts`.
    """
    words = [os.fspath(word) for word in config.invocation_params.args]
    addopts = shlex.split(os.environ.get(_ADDOPTS, ""))
    second = Second(list(_joined(words, parser)), list(_joined(addopts, parser)))
    read_as, meant = (parser.parse_known_args(line) for line in (addopts + words, second.addopts + second.words))
    if _setup(config, read_as) != _setup(config, meant):
        config.pluginmanager.register(second, "llmbench-second-session")
        args[:] = ["--noconftest", "--capture=no", os.curdir]
    known = parser.parse_known_args(list(_joined(args, parser)), namespace=copy.copy(config.option))
    known.confcutdir = config.known_args_namespace.confcutdir
    config.known_args_namespace = known


def _setup(config: pytest.Config, line: Namespace) -> tuple[Path, Path | None]:
    """The root folder and the ini file that pytest finds for a command line."""
    root, ini, *_ = determine_setup(
        inifile=line.inifilename, override_ini=None, args=line.file_or_dir, rootdir_cmd_arg=line.rootdir or None,
        invocation_dir=config.invocation_params.dir,
    )  # fmt: skip
    return root, ini


def _joined(words: Iterable[str], parser: pytest.Parser) -> Iterator[str]:
    """The words, where the value of an option of ours that is a path is joined to it by `=`."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield word
            yield from rest
        elif options.takes_next_word(parser, word) and (value := next(rest, None)) is not None:
            yield from [f"{word}={value}"] if _is_path(value) else [word, value]
        else:
            yield word


def _is_path(value: str) -> bool:
    """Whether pytest takes it for the path of tests."""
    try:
        return not value.startswith("-") and Path(value.partition("::")[0]).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False
