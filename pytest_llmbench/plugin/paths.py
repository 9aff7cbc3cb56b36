"""Refuses paths of our options that may lead pytest to a foreign ini file.

pytest decides on its ini file before it loads plugins, while `--system` is unknown to it: the FILE of `--system FILE`
looks like a test to run. Written `--system=FILE`, it is one word that begins with a dash.
"""

import copy
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_llmbench.plugin.options import OPTIONS
from pytest_llmbench.plugin.pytest_private import find_setup


def refuse_foreign_config(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Refuse a path of ours that may have led pytest to another ini file, and keep it from loading a `conftest.py`.

    Conftest files are loaded later, and pytest's parser is without our options so far. It will parse `args`, in which
    are the ini file's `addopts`. Raises UsageError if that may have happened; the message has the words to write
    instead.
    """
    joined = [*_join_values(args, parser)]
    if joined == [*args]:
        return
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(os.fspath, config.invocation_params.args)]
    meant = parser.parse_known_args([*_join_values(words, parser)])
    known = config.known_args_namespace
    if not (known.inifilename or known.rootdir):
        rootdir, inipath = find_setup(meant.file_or_dir, config.invocation_params.dir)
        if inipath != config.inipath or not rootdir.is_relative_to(config.rootpath):
            word = next(word for word in _join_values(words, parser) if word not in words)
            raise pytest.UsageError(
                f"{word.replace('=', ' ', 1)}: pytest takes the path for tests, and looks for its ini file there: "
                f"write {shlex.quote(word)}"
            )
    known = parser.parse_known_args(joined, namespace=copy.copy(config.option))
    known.confcutdir = config.known_args_namespace.confcutdir
    config.known_args_namespace = known


def _join_values(words: Iterable[str], parser: pytest.Parser) -> Iterator[str]:
    """The words, where the value of an option of ours that is a path is joined to it by `=`."""
    takes_value = {form for option in OPTIONS if option.parse and option.bare is None for form in option.forms}
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield word
            yield from rest
        elif word in takes_value and _is_free(word, parser) and (value := next(rest, None)) is not None:
            yield from [f"{word}={value}"] if _is_path(value) else [word, value]
        else:
            yield word


def _is_free(form: str, parser: pytest.Parser) -> bool:
    """True if the option is still undeclared by other plugins."""
    try:
        return form in parser.parse_known_and_unknown_args([form])[1]
    except pytest.UsageError:  # it is known, and lacks its value
        return False


def _is_path(value: str) -> bool:
    """True if pytest takes a word for the path of tests."""
    try:
        return not value.startswith("-") and Path(value.partition("::")[0]).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False
