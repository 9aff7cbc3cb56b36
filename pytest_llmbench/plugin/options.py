"""Options, on the command line and in ini files, and the settings they add up to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.durations import parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown

_INI_PREFIX = "llmbench_"
_LEFT_OUT = pytest.StashKey[tuple[str, ...]]()


class Section(StrEnum):
    """A section of `pytest --help`."""

    WHAT = "LLM training benchmarks: runs and reports"
    WHERE = "LLM training benchmarks: nodes"
    SLURM = "LLM training benchmarks: Slurm"
    UNFIT = "LLM training benchmarks: nodes that fail a check"


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One option without a value, on the command line only: `--llmbench-name`, and `--name` where that is free.

    Attributes:
        help: starts with a capital; no full stop after a single phrase.
    """

    name: str
    group: Section
    help: str

    @property
    def key(self) -> str:
        """Its name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def short(self) -> str:
        """The form that any other plugin may have as well."""
        return f"--{self.name}"

    @property
    def long(self) -> str:
        """The form that is ours alone."""
        return f"--llmbench-{self.name}"

    @property
    def described(self) -> str:
        """Its help, with its default if it has one."""
        return self.help

    @property
    def attributes(self) -> dict[str, Any]:
        """How argparse reads it."""
        return {"action": "store_true"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Option(Flag):
    """One option with a value, which has a twin `llmbench_name` in ini files.

    Attributes:
        parse: turns its text into a value, or raises ConfigError with what is legal.
        default: its meaning where it is not given, for people; empty where there is none.
        bare: its value on the command line without a value; None where it needs one.
    """

    parse: Callable[[str], Any]
    metavar: str
    default: str = ""
    bare: str | None = None

    @property
    def described(self) -> str:
        """Its help with its default."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def attributes(self) -> dict[str, Any]:
        """How argparse reads it."""
        optional = {"nargs": "?", "const": self.bare} if self.bare is not None else {}
        return {"type": _for_argparse(self.parse), "default": None, "metavar": self.metavar, **optional}


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r} must be a whole number >= 1")
    return int(text)


def non_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{text!r} must be a whole number >= 0")
    return int(text)


def one_of(what: str, *legal: str) -> Callable[[str], str]:
    """Make a parser that takes one of a few words."""

    def parse(text: str) -> str:
        if text not in legal:
            raise ConfigError(unknown(what, text, legal))
        return text

    return parse


OPTIONS = (
    Option(
        name="nodes",
        group=Section.WHERE,
        parse=positive,
        metavar="N",
        help="Nodes in all; on Slurm they are held for the session",
        default="each recipe's nodes",
    ),
    Option(
        name="gpus-per-node",
        group=Section.WHERE,
        parse=non_negative,
        metavar="N",
        help="GPUs used on each node; 0 trains on the CPU",
        default="the system's, else each recipe's",
    ),
    Option(
        name="nodes-per-run",
        group=Section.WHERE,
        parse=positive,
        metavar="N",
        help="Nodes of one run; every recipe then runs on each group of that many of the nodes",
        default="all nodes",
    ),
    Option(
        name="cluster",
        group=Section.WHERE,
        parse=one_of("cluster", "auto", "slurm", "local", "debug"),
        metavar="auto|slurm|local|debug",
        help="How runs start: Slurm jobs, processes of this machine, or inside this process",
        default="auto",
    ),
    Option(
        name="system",
        group=Section.WHERE,
        parse=str,
        metavar="NAME|FILE",
        help="The cluster, by name or by its YAML file",
        default="slurm or local",
    ),
    Option(
        name="partition", group=Section.SLURM, parse=str, metavar="NAME", help="Slurm partition", default="the system's"
    ),
    Option(
        name="account", group=Section.SLURM, parse=str, metavar="NAME", help="Slurm account", default="the system's"
    ),
    Option(
        name="qos",
        group=Section.SLURM,
        parse=str,
        metavar="NAME",
        help="Slurm quality of service",
        default="the system's",
    ),
    Option(
        name="reservation",
        group=Section.SLURM,
        parse=str,
        metavar="NAME",
        help="Slurm reservation",
        default="the system's",
    ),
    Option(name="nodelist", group=Section.SLURM, parse=str, metavar="NODES", help="Nodes that Slurm must use"),
    Option(name="exclude", group=Section.SLURM, parse=str, metavar="NODES", help="Nodes that Slurm must not use"),
    Option(
        name="constraint",
        group=Section.SLURM,
        parse=str,
        metavar="FEATURES",
        help="Features the nodes must have",
        default="the system's",
    ),
    Option(
        name="comment",
        group=Section.SLURM,
        parse=str,
        metavar="TEXT",
        help="Added to the comment of every Slurm job, after the session's token",
    ),
    Option(
        name="time",
        group=Section.SLURM,
        parse=parse_minutes,
        metavar="TIME",
        help="Wall-clock limit of each Slurm job and of every run in it, in Slurm's notation",
        default="each recipe's time_limit",
    ),
    Option(
        name="allocation",
        group=Section.WHAT,
        parse=one_of("allocation", "session", "run"),
        metavar="session|run",
        help="Hold nodes for the session, or make a Slurm job per run",
        default="run on Slurm without --nodes and outside a Slurm job, else session",
    ),
    Option(
        name="scale",
        group=Section.WHAT,
        parse=one_of("scale", "full", "smoke"),
        metavar="full|smoke",
        help="The published configuration, or the same code at a tiny shape",
        default="full",
    ),
    Option(
        name="max-runs",
        group=Section.WHAT,
        parse=positive,
        metavar="N",
        help="Runs at once",
        default="as many as the nodes allow",
    ),
    Option(
        name="run-dir",
        group=Section.WHAT,
        parse=Path,
        metavar="DIR",
        help="Folder for records, scripts and logs; on a cluster, on a file system that all nodes share",
        default="reports",
    ),
    Option(
        name="gate",
        group=Section.UNFIT,
        parse=one_of("gate", "auto", "on", "off"),
        metavar="auto|on|off",
        help="Keep nodes that fail a check out of later work: links are not measured with them, runs go to "
        "others or are skipped",
        default="auto, on when checks and runs are selected",
    ),
    Option(
        name="quarantine",
        group=Section.UNFIT,
        parse=Path,
        metavar="FILE",
        help="File of unfit nodes to exclude; newly found unfit nodes are appended",
    ),
    Option(
        name="drain",
        group=Section.UNFIT,
        parse=one_of("drain", "print", "yes"),
        metavar="print|yes",
        bare="print",
        help="Print the scontrol commands that drain unfit nodes; with --drain=yes, run them as well",
    ),
    Option(
        name="require",
        group=Section.WHAT,
        parse=Path,
        metavar="FILE",
        help="File of required verdicts: clauses of a contract and their tests",
    ),
    Option(
        name="require-verdict",
        group=Section.WHAT,
        parse=one_of("require-verdict", "yes", "no"),
        metavar="yes|no",
        bare="yes",
        help="End with exit code 10 if no speed of a run was judged; without a value it is yes",
        default="yes at scale full",
    ),
    Option(
        name="replay",
        group=Section.WHAT,
        parse=Path,
        metavar="DIR",
        help="Judge the logs in this folder instead of running anything",
    ),
)
FLAGS = (
    Flag(
        name="plan", group=Section.WHAT, help="Print what would run, the scripts and the node-hours, and submit nothing"
    ),
    Flag(
        name="first-run-alone",
        group=Section.WHAT,
        help="Run the first run alone, to warm shared caches of compiled kernels",
    ),
    Flag(
        name="nccl",
        group=Section.UNFIT,
        help="With the gate on, measure collectives and links even if a node failed another check",
    ),
)


def add_ini_keys(parser: pytest.Parser) -> None:
    """Declare the ini keys."""
    for option in OPTIONS:
        parser.addini(_INI_PREFIX + option.key, f"{option.described} (as {option.short})", default=None)
    for kind in ("recipes", "systems"):
        parser.addini(
            f"{_INI_PREFIX}{kind}",
            f"Folders with {kind} of your own, in addition to the installed ones",
            type="paths",
            default=[],
        )


def add_options(parser: pytest.Parser, config: pytest.Config) -> None:
    """Declare every option, once, and keep which short forms are left out because another plugin has them."""
    if not hasattr(config.option, _INI_PREFIX + FLAGS[0].key):
        config.stash[_LEFT_OUT] = tuple(option.short for option in (*OPTIONS, *FLAGS) if not _add(parser, option))


def takes_next_word(parser: pytest.Parser, form: str) -> bool:
    """Whether a form is of an option of ours that has its value in the next word, before they are declared."""
    ours = {form: option for option in OPTIONS for form in (option.short, option.long)}
    return form in ours and ours[form].bare is None and _is_free(parser, form)


def told_of_left_out(config: pytest.Config) -> list[str]:
    """Say which short forms belong to others, and what to write in their place."""
    forms: tuple[str, ...] = config.stash.get(_LEFT_OUT, ())
    if not forms:
        return []
    instead = ", ".join(f"--llmbench-{form.removeprefix('--')}" for form in forms)
    what = "belongs" if len(forms) == 1 else "belong"
    return [f"llmbench: {', '.join(forms)} {what} to another plugin or conftest.py: write {instead}"]


def asked_of_others(config: pytest.Config) -> bool:
    """Whether the command line has a short form that belongs to others: its user may have meant ours."""
    words = {str(word).partition("=")[0] for word in config.invocation_params.args}
    left_out: tuple[str, ...] = config.stash.get(_LEFT_OUT, ())
    return not words.isdisjoint(left_out)


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
    return any(flag(config, f.key) for f in FLAGS) or any(
        config.getoption(_INI_PREFIX + o.key) is not None for o in OPTIONS
    )


def plan_only(config: pytest.Config) -> bool:
    """Whether `--plan` was given."""
    return flag(config, "plan")


def flag(config: pytest.Config, name: str) -> bool:
    """Whether an option without a value was given, such as `first_run_alone`."""
    return bool(config.getoption(_INI_PREFIX + name))


def folders(config: pytest.Config, kind: str) -> list[Path]:
    """The user's own folders of recipes or systems.

    Raises:
        ConfigError: a folder named in the ini file is not there.
    """
    own = [Path(path) for path in config.getini(f"{_INI_PREFIX}{kind}")]
    for path in own:
        if not path.is_dir():
            raise ConfigError(f"ini option {_INI_PREFIX}{kind}: {path} is not a folder")
    return [path.resolve() for path in own]


def _add(parser: pytest.Parser, option: Flag) -> bool:
    """Declare an option, and say whether its short form was free."""
    add = partial(
        parser.getgroup(option.group.name, option.group).addoption,
        dest=_INI_PREFIX + option.key, help=option.described, **option.attributes,
    )  # fmt: skip
    try:
        add(option.short, option.long)
    except argparse.ArgumentError:
        add(option.long)
        return False
    return True


def _is_free(parser: pytest.Parser, form: str) -> bool:
    """Whether the option's name is still free."""
    try:
        return form in parser.parse_known_and_unknown_args([form])[1]
    except pytest.UsageError:  # it is known, and lacks its value
        return False


def _for_argparse(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def run(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return run


def loaded_by_conftest(manager: pytest.PytestPluginManager) -> bool:
    """Whether conftest files are loaded already, as where one of them names this plugin in its `pytest_plugins`."""
    return any(Path(getattr(plugin, "__file__", None) or "").name == "conftest.py" for plugin in manager.get_plugins())
