"""Options, on the command line and in ini files, and the settings they add up to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.durations import parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.paths import shipped

_INI_PREFIX = "llmbench_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option: `--name` on the command line, `llmbench_name` in ini files.

    Attributes:
        parse: turns its text into a value, or raises ConfigError with what is legal.
        help: starts with a capital; no full stop after a single phrase.
        bare: what it means on the command line without a value; None where it needs one.
    """

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    bare: str | None = None

    @property
    def key(self) -> str:
        """Its name as an identifier."""
        return self.name.replace("-", "_")


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r} is no whole number of at least 1")
    return int(text)


def non_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{text!r} is no whole number of at least 0")
    return int(text)


def one_of(what: str, *legal: str) -> Callable[[str], str]:
    """Make a parser that takes one of a few words."""

    def parse(text: str) -> str:
        if text not in legal:
            raise ConfigError(unknown(what, text, legal))
        return text

    return parse


OPTIONS = (
    Option(name="nodes", parse=positive, metavar="N", help="Nodes in all; on Slurm they are held for the session"),
    Option(name="gpus-per-node", parse=non_negative, metavar="N", help="GPUs used on each node; 0 trains on the CPU"),
    Option(name="nodes-per-run", parse=positive, metavar="N", help="Nodes of one run: each recipe runs on every group"),
    Option(
        name="cluster", parse=one_of("cluster", "auto", "slurm", "local", "debug"), metavar="auto|slurm|local|debug",
        help="How runs start: Slurm jobs, processes of this machine, or inside this process (default: auto)",
    ),
    Option(name="system", parse=str, metavar="NAME|FILE", help="The cluster, by name or by its YAML file"),
    Option(name="partition", parse=str, metavar="NAME", help="Slurm partition"),
    Option(name="account", parse=str, metavar="NAME", help="Slurm account"),
    Option(name="qos", parse=str, metavar="NAME", help="Slurm quality of service"),
    Option(name="reservation", parse=str, metavar="NAME", help="Slurm reservation"),
    Option(name="nodelist", parse=str, metavar="NODES", help="Nodes that Slurm must use"),
    Option(name="exclude", parse=str, metavar="NODES", help="Nodes that Slurm must not use"),
    Option(name="constraint", parse=str, metavar="FEATURES", help="Features the nodes must have"),
    Option(name="comment", parse=str, metavar="TEXT", help="Added to the comment of every Slurm job"),
    Option(
        name="time", parse=parse_minutes, metavar="TIME",
        help="Wall-clock limit of each Slurm job and of every run in it, in Slurm's notation (default: the recipes')",
    ),
    Option(
        name="allocation", parse=one_of("allocation", "session", "run"), metavar="session|run",
        help="Hold nodes for the session, or make a Slurm job per run (default: session with --nodes, else run)",
    ),
    Option(
        name="scale", parse=one_of("scale", "full", "smoke"), metavar="full|smoke",
        help="The published configuration, or the same code at a tiny shape (default: full)",
    ),
    Option(name="max-runs", parse=positive, metavar="N", help="Runs at once (default: as many as the nodes allow)"),
    Option(name="run-dir", parse=Path, metavar="DIR", help="Where records, scripts and logs go (default: reports)"),
    Option(
        name="gate", parse=one_of("gate", "auto", "on", "off"), metavar="auto|on|off",
        help="Whether nodes that fail a check are kept from what comes later: links are not measured beside them, "
        "runs go to others or are skipped (default: auto, on when checks and runs are selected)",
    ),
    Option(name="quarantine", parse=Path, metavar="FILE", help="A list of unfit nodes: not used, and added to"),
    Option(
        name="drain", parse=one_of("drain", "print", "yes"), metavar="print|yes", bare="print",
        help="Print the scontrol commands that drain unfit nodes; with --drain=yes, run them as well",
    ),
    Option(name="replay", parse=Path, metavar="DIR", help="Judge the logs in DIR in place of running anything"),
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("llmbench", "LLM training benchmarks")
    for option in OPTIONS:
        group.addoption(
            f"--{option.name}", dest=_INI_PREFIX + option.key, type=_for_argparse(option.parse), default=None,
            metavar=option.metavar, help=option.help,
            **({"nargs": "?", "const": option.bare} if option.bare is not None else {}),
        )  # fmt: skip
        parser.addini(_INI_PREFIX + option.key, f"{option.help} (as --{option.name})", default=None)
    group.addoption(
        "--plan", dest="llmbench_plan", action="store_true",
        help="Print what would run, the scripts and the node-hours, and submit nothing",
    )  # fmt: skip
    group.addoption(
        "--nccl", dest="llmbench_nccl", action="store_true",
        help="With the gate on, measure collectives and links although a node failed another check",
    )  # fmt: skip
    group.addoption(
        "--first-run-alone", dest="llmbench_first_run_alone", action="store_true",
        help="Run nothing beside the first run, which fills the caches (compiled kernels) that all would fill at once",
    )  # fmt: skip
    for kind in ("recipes", "systems"):
        parser.addini(
            f"{_INI_PREFIX}{kind}",
            f"Folders with {kind} of your own, besides the shipped ones",
            type="paths",
            default=[],
        )


def value(config: pytest.Config, option: str) -> Any:
    """An option's value: from the command line, else from the ini file, else None.

    Raises:
        ConfigError: the ini value is not legal.
    """
    key = _INI_PREFIX + option.replace("-", "_")
    given = config.getoption(key)
    if given is not None:
        return given
    text = config.getini(key)
    if text is None or text == "":
        return None
    try:
        parsed = next(o for o in OPTIONS if o.name == option).parse(str(text))
    except ConfigError as error:
        raise ConfigError(f"ini option {key}: {error}") from error
    # A path in an ini file means the same from whichever folder pytest is started.
    beside = (config.inipath.parent if config.inipath else config.rootpath) / str(text)
    if isinstance(parsed, Path) or (option == "system" and beside.is_file()):
        return type(parsed)(beside)
    return parsed


def given_on_command_line(config: pytest.Config) -> bool:
    """Whether any of our options was."""
    return (
        plan_only(config)
        or flag(config, "first_run_alone")
        or flag(config, "nccl")
        or any(config.getoption(_INI_PREFIX + o.key) is not None for o in OPTIONS)
    )


def plan_only(config: pytest.Config) -> bool:
    """Whether `--plan` was given."""
    return bool(config.getoption("llmbench_plan"))


def flag(config: pytest.Config, name: str) -> bool:
    """Whether an option without a value was given, such as `first_run_alone`."""
    return bool(config.getoption(_INI_PREFIX + name))


def folders(config: pytest.Config, kind: str) -> list[Path]:
    """The folders to look for recipes or systems in: the shipped one, and the user's own.

    Raises:
        ConfigError: a folder named in the ini file is not there.
    """
    own = [Path(path) for path in config.getini(f"{_INI_PREFIX}{kind}")]
    for path in own:
        if not path.is_dir():
            raise ConfigError(f"ini option {_INI_PREFIX}{kind}: {path} is no folder")
    builtin = shipped("recipes" if kind == "recipes" else "systems")
    return list(dict.fromkeys([builtin.resolve(), *(path.resolve() for path in own)]))


def _for_argparse(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def run(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return run
