"""Options, on the command line and in ini files, the settings they add up to, and errors in them."""

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.heartbeat import timeout_of
from pytest_llmbench.core.durations import parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.trend.wanted import Wanted

_INI_PREFIX = "llmbench_"
_FOLDERS = ("recipes", "systems")
# They concern tests of others as well, or are refused before anything is collected.
_OF_ANY_SESSION = ("require", "resume", "session_name")
_LEFT_OUT = pytest.StashKey[tuple[str, ...]]()


class Section(StrEnum):
    """A section of `pytest --help`."""

    WHAT = "LLM training benchmarks: runs and reports"
    WHERE = "LLM training benchmarks: nodes"
    SLURM = "LLM training benchmarks: Slurm"
    UNFIT = "LLM training benchmarks: nodes that fail a check"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def positive_hours(text: str) -> float:
    """Read a number of hours above 0.

    Raises:
        ConfigError: it cannot be read as one, or is 0.
    """
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip(), re.ASCII) or float(text) <= 0:
        raise ConfigError(f"{text!r} must be a number of GPU-hours above 0")
    return float(text)


def file_or_url(text: str) -> Path | str:
    """Read the place of a history: a path means the same from everywhere, a URL does anyway."""
    return text if "://" in text else Path(text)


def share(text: str) -> Quantity:
    """Read a share above 0, such as `3 %`."""
    try:
        given = Quantity(text).to("%")
    except ConfigError as error:
        raise ConfigError(f"{text!r} must be a share, such as '3 %': {error}") from error
    if given.value <= 0.0:
        raise ConfigError(f"{text!r} must be a share above 0 %, such as '3 %'")
    return given


def fault(text: str) -> Any:
    """Read a fault that ranks are to cause.

    Raises:
        ConfigError: it is not one.
    """
    from pytest_llmbench.core.wire.fault import SimulatedFault  # noqa: PLC0415  # pydantic is heavy

    return SimulatedFault.parse(text)


def name_of_session(text: str) -> str:
    """Read the name of a session, which becomes a folder.

    Raises:
        ConfigError: it cannot be one.
    """
    from pytest_llmbench.cluster.runs import session_name  # noqa: PLC0415  # pydantic is heavy

    return session_name(text)


def choice(name: str, group: Section, help_: str, words: str, default: str = "", bare: str | None = None) -> Option:
    """Make an option that takes one of a few words, which `|` separates."""

    def parse(text: str) -> str:
        if text not in words.split("|"):
            raise ConfigError(unknown(name, text, words.split("|")))
        return text

    return Option(name, group, help_, parse, words, default, bare)


_NODES = "Number of nodes; on Slurm the session holds them until its end"
_GPUS = "GPUs used on each node; 0 trains on the CPU"
_NODES_PER_RUN = "Nodes of one run; every recipe then runs once on each group of N nodes"
_CLUSTER = "Start runs as Slurm jobs, as processes of this machine, or inside this process"
_TIME = "Wall-clock limit of each Slurm job and of every run in it, in Slurm's notation"
_MAX_WAIT = "Longest wait of each Slurm job in the queue, in Slurm's notation; one that waits longer is cancelled"
_SESSION_TIME = "Longest wall clock of the session, in Slurm's notation; then it ends as at Ctrl-C"
_ALLOCATION = "Hold nodes for the session, or make a Slurm job per run"
_USUAL_ALLOCATION = "run on Slurm without --nodes and outside a Slurm job, else session"
_SCALE = "The published configuration, or the same code at a tiny shape"
_BUDGET = "Most GPU-hours that runs and checks may take by their time limits; a session that could take more is refused"
_RETRIES = "Further attempts of a run whose Slurm job was lost, preempted or started twice, or lost a node"
_RUN_DIR = "Folder for records, scripts and logs; on a cluster, on a file system that all nodes share"
_HEARTBEAT_TIMEOUT = "Seconds without a sign of life from pytest after which its jobs, nodes and ranks end themselves"
_GATE = "Keep nodes that fail a check out of later work: links are not measured with them, runs go to "
_GATE += "others or are skipped"
_QUARANTINE = "File of unfit nodes to exclude; newly found unfit nodes are appended"
_DRAIN = "Print the scontrol commands that drain unfit nodes; with --drain=yes, run them as well"
_REPEAT = "Runs of each recipe, one after the other, that are judged together"
_REQUIRE_VERDICT = "End with exit code 10 if no threshold judged the speed of a run; without a value it means yes"
_EXIT_CODES = "Exit codes: usual (1 for every failure), or detailed (1 slow, 11 undecided, 12 incomplete, 13 broken)"
_SESSION_NAME = "Name of the session's folder in the run directory; a name that is taken is refused"
_GROUP_TOLERANCE = "Share by which the steps of a group of nodes may be slower than those of the others"
_INCONCLUSIVE = "If a threshold is too close to the measured number to decide: fail the test, make further runs first, "
_INCONCLUSIVE += "or skip it"
_EARLY_VERDICT = (
    "End a run as soon as every threshold of its tests is decided; looks come after 25, 35, 50 and 70 percent "
)
_EARLY_VERDICT += "of its steps"
_LIVE = "Table of all runs while they go on: auto draws it on a terminal, without -s and outside of CI, and writes "
_LIVE += "plain lines anywhere else; on draws it on any terminal; off shows neither"
_REPORT = "Write the report of the session for people, report.html, into its folder"
_RESUME = "Go on with a session whose process died: keep its finished runs, adopt its jobs, make the rest; without a "
_RESUME += "value, the newest that did not end"
_METRICS_FILE = (
    "File for the textfile collector of node-exporter: the session's numbers as OpenMetrics, replaced at its end"
)
_HISTORY = "Database that gets this session's records at its end: a file, or postgresql://USER@HOST/DATABASE"
_COMPARE_TO = (
    "Compare the speed of each run with earlier ones in --history: a regression beyond the uncertainty of both "
)
_COMPARE_TO += "fails"
_AVOID = "Keep off nodes of which --history has faults of their own in 2 sessions of the last 14 days"
_SIMULATE = "Have a rank of each run cause a fault in that step, to see that the tests fail when they must"
OPTIONS = (
    Option("nodes", Section.WHERE, _NODES, positive, "N", "each recipe's nodes"),
    Option("gpus-per-node", Section.WHERE, _GPUS, non_negative, "N", "the system's, else each recipe's"),
    Option("nodes-per-run", Section.WHERE, _NODES_PER_RUN, positive, "N", "all nodes"),
    choice("cluster", Section.WHERE, _CLUSTER, "auto|slurm|local|debug", "auto"),
    Option("system", Section.WHERE, "The cluster, by name or by its YAML file", str, "NAME|FILE", "slurm or local"),
    Option("partition", Section.SLURM, "Slurm partition", str, "NAME", "the system's"),
    Option("account", Section.SLURM, "Slurm account", str, "NAME", "the system's"),
    Option("qos", Section.SLURM, "Slurm quality of service", str, "NAME", "the system's"),
    Option("reservation", Section.SLURM, "Slurm reservation", str, "NAME", "the system's"),
    Option("nodelist", Section.SLURM, "Nodes that Slurm must use", str, "NODES"),
    Option("exclude", Section.SLURM, "Nodes that Slurm must not use", str, "NODES"),
    Option("constraint", Section.SLURM, "Features the nodes must have", str, "FEATURES", "the system's"),
    Option("comment", Section.SLURM, "Text for the comment of every Slurm job, after the session's token", str, "TEXT"),
    Option("time", Section.SLURM, _TIME, parse_minutes, "TIME", "each recipe's time_limit"),
    Option("max-wait", Section.SLURM, _MAX_WAIT, parse_minutes, "TIME"),
    Option("session-time", Section.WHAT, _SESSION_TIME, parse_minutes, "TIME"),
    choice("allocation", Section.WHAT, _ALLOCATION, "session|run", _USUAL_ALLOCATION),
    choice("scale", Section.WHAT, _SCALE, "full|smoke", "full"),
    Option("repeat", Section.WHAT, _REPEAT, positive, "N", "each test's `repeats`, else 1"),
    Option("max-runs", Section.WHAT, "Most runs at the same time", positive, "N", "as many as the nodes allow"),
    Option("budget", Section.WHAT, _BUDGET, positive_hours, "HOURS"),
    Option("retries", Section.WHAT, _RETRIES, non_negative, "N", "0"),
    Option("heartbeat-timeout", Section.WHAT, _HEARTBEAT_TIMEOUT, timeout_of, "SECONDS", "60"),
    Option("run-dir", Section.WHAT, _RUN_DIR, Path, "DIR", "reports"),
    Option("session-name", Section.WHAT, _SESSION_NAME, name_of_session, "NAME", "time and digits"),
    choice("gate", Section.UNFIT, _GATE, "auto|on|off", "auto, on when checks and runs are selected"),
    Option("quarantine", Section.UNFIT, _QUARANTINE, Path, "FILE"),
    choice("drain", Section.UNFIT, _DRAIN, "print|yes", bare="print"),
    Option("require", Section.WHAT, "File of required verdicts: clauses of a contract and their tests", Path, "FILE"),
    choice("require-verdict", Section.WHAT, _REQUIRE_VERDICT, "yes|no", "yes at scale full", bare="yes"),
    choice("report", Section.WHAT, _REPORT, "yes|no", "yes"),
    choice("exit-codes", Section.WHAT, _EXIT_CODES, "usual|detailed", "usual"),
    choice("inconclusive", Section.WHAT, _INCONCLUSIVE, "fail|rerun|warn", "fail"),
    Option(
        "group-tolerance",
        Section.WHAT,
        _GROUP_TOLERANCE,
        share,
        "SHARE",
        "3 percent on GPUs at scale full, else not compared",
    ),
    choice("live", Section.WHAT, _LIVE, "auto|on|off", "auto"),
    Option("history", Section.WHAT, _HISTORY, file_or_url, "URL"),
    Option("compare-to", Section.WHAT, _COMPARE_TO, Wanted.parse, "last[:N]|best|tag:NAME|commit:SHA"),
    Option("resume", Section.WHAT, _RESUME, str, "SESSION", bare=layout.NEWEST),
    Option("simulate", Section.WHAT, _SIMULATE, fault, "FAULT@STEP"),
    Option("metrics-file", Section.WHAT, _METRICS_FILE, Path, "FILE"),
    Option("replay", Section.WHAT, "Judge the logs in this folder instead of running anything", Path, "DIR"),
)
FLAGS = (
    Flag("plan", Section.WHAT, "Print what would run, the scripts and the node-hours, and submit nothing"),
    Flag("early-verdict", Section.WHAT, _EARLY_VERDICT),
    Flag("first-run-alone", Section.WHAT, "Run the first run alone, to warm shared caches of compiled kernels"),
    Flag("avoid-from-history", Section.UNFIT, _AVOID),
    Flag("nccl", Section.UNFIT, "With the gate on, measure collectives and links even if a node failed another check"),
)


def add_ini_keys(parser: pytest.Parser) -> None:
    """Declare the ini keys."""
    for option in OPTIONS:
        parser.addini(_INI_PREFIX + option.key, f"{option.described} (as {option.short})", default=None)
    for kind in _FOLDERS:
        told = f"Folders with {kind} of your own, in addition to the installed ones"
        parser.addini(f"{_INI_PREFIX}{kind}", told, type="paths", default=[])


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


def check_ini(config: pytest.Config) -> None:
    """See that each ini key of ours is known, and has a legal value: also those that no session has asked for yet.

    Raises:
        ConfigError: one is not.
    """
    known = [f"{_INI_PREFIX}{name}" for name in (*(option.key for option in OPTIONS), *_FOLDERS)]
    # pytest tells nobody which keys there are; it could read the file, whichever of its formats it has.
    text = config.inipath.read_text(encoding="utf-8") if config.inipath is not None else ""
    for key in re.findall(rf"^\s*({_INI_PREFIX}\w+)\s*=", text, re.MULTILINE):
        if key not in known:
            raise ConfigError(unknown("ini option", key, known))
    for option in OPTIONS:
        value(config, option.name)


def given_on_command_line(config: pytest.Config) -> bool:
    """Whether any of our options was."""
    values = (config.getoption(_INI_PREFIX + option.key) for option in OPTIONS)
    return any(flag(config, each.key) for each in FLAGS) or any(value is not None for value in values)


def asks_for_a_session(config: pytest.Config) -> bool:
    """Whether any of our options was, or an ini key that means something without a test of ours."""
    return given_on_command_line(config) or any(config.getini(_INI_PREFIX + key) for key in _OF_ANY_SESSION)


def from_here(config: pytest.Config, path: Path) -> Path:
    """A path as the user meant it: from the folder in which pytest was started."""
    return Path(config.invocation_params.dir, path.expanduser())


def run_dir(config: pytest.Config) -> Path:
    """The folder of all sessions' folders."""
    return from_here(config, value(config, "run-dir") or Path("reports"))


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


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Mistakes of the user are usage errors, with their message and without a traceback."""
    try:
        yield
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
