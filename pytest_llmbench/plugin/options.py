"""The options: each is declared once, as a field of `Options`, and read once, when a session of ours begins."""

# ruff: noqa: RUF009  # a field is declared by a function, which says what the option is

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from pytest_llmbench.cluster.heartbeat import TTL_S, timeout_of
from pytest_llmbench.cluster.slurm.keys import parse_pair
from pytest_llmbench.core.durations import parse_minutes
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.wanted import Wanted

_PREFIX = "llmbench_"
_AS_RECORDED = "as-recorded:"
FOLDERS = {
    "recipes": "Folders with recipes of your own, in addition to the installed ones; relative to the ini file",
    "systems": "Folders with systems of your own, in addition to the installed ones; relative to the ini file",
}
_LEFT_OUT = pytest.StashKey[tuple[str, ...]]()


class Section(StrEnum):
    """A section of `pytest --help`."""

    WHAT = "LLM training benchmarks: runs and reports"
    WHERE = "LLM training benchmarks: nodes"
    SLURM = "LLM training benchmarks: Slurm"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Option:
    """One option: `--llmbench-NAME` on the command line, `llmbench_name` in ini files."""

    name: str
    section: Section | None  # its section of `pytest --help`; None for a key of ini files alone
    help: str  # its text in `pytest --help`; starts with a capital, and ends without a full stop if it is one phrase
    parse: Callable[[str], Any] | None  # turns its text into a value, or raises ConfigError; None for a flag
    metavar: str  # the form of its value, or its legal words
    default: str  # the meaning of leaving it out, for people, or empty
    short: bool = False  # whether it also has the form `--NAME`, as the options in README.md do
    ini: bool = True  # whether ini files may have it
    bare: str | None = None  # its value where the command line names it without one; None where it needs a value
    repeatable: bool = False  # whether it may be given several times; each text is then a pair

    @property
    def key(self) -> str:
        """Its name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def forms(self) -> tuple[str, ...]:
        """Its forms on the command line, the shortest first."""
        if self.section is None:
            return ()
        return (*([f"--{self.name}"] if self.short else []), f"--{_PREFIX[:-1]}-{self.name}")

    @property
    def description(self) -> str:
        """Its help with its default."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments of argparse. It checks the text and keeps it: workers of xdist get plain texts."""
        if self.parse is None:
            return {"action": "store_true"}
        optional = {"nargs": "?", "const": self.bare} if self.bare is not None else {}
        action = {"action": "append"} if self.repeatable else {}
        return {"type": _checked(self.parse), "default": None, "metavar": self.metavar, **optional, **action}


def whole(least: int) -> Callable[[str], int]:
    """Make the parser of a whole number of at least `least`."""

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ConfigError(f"{text!r} must be a whole number >= {least}")
        return int(text)

    return parse


def positive_hours(text: str) -> float:
    """Read a number of GPU-hours above 0."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip(), re.ASCII) or float(text) <= 0:
        raise ConfigError(f"{text!r} must be a number of GPU-hours above 0")
    return float(text)


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
    """Read a fault that ranks are to cause."""
    from pytest_llmbench.core.wire.fault import SimulatedFault  # noqa: PLC0415  # pydantic is heavy

    return SimulatedFault.parse(text)


def name_of_session(text: str) -> str:
    """Read the name of a session, which becomes a folder."""
    from pytest_llmbench.cluster.runs import session_name  # noqa: PLC0415  # pydantic is heavy

    return session_name(text)


def _option(
    section: Section | None,
    help_: str,
    parse: Callable[[str], Any] | None = None,
    metavar: str = "",
    default: str = "",
    *,
    value: Any = None,
    **form: Any,
) -> Any:
    """Declare an option as a field; `value` is the field's default."""
    metadata = {"section": section, "help": help_, "parse": parse, "metavar": metavar, "default": default, **form}
    if form.get("repeatable"):
        return field(default_factory=dict, metadata=metadata)
    return field(default=value, metadata=metadata)


def _words(section: Section | None, help_: str, words: str, default: str = "", **form: Any) -> Any:
    """Declare an option that takes one of a few words, which `|` separates; the first is the default."""
    legal = words.split("|")

    def parse(text: str) -> str:
        if text not in legal:
            raise ConfigError(unknown("value", text, legal))
        return text

    return _option(section, help_, parse, words, default or legal[0], **{"value": legal[0], **form})


def _flag(help_: str, **form: Any) -> Any:
    return _option(Section.WHAT, help_, value=False, ini=False, **form)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedFolder:
    """The folder of `--replay`, and whether the recipes in its records decide what had to run."""

    folder: Path
    as_recorded: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the value of the option."""
        folder = text.removeprefix(_AS_RECORDED)
        return cls(folder=Path(folder), as_recorded=folder != text)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Options:
    """The options of a session. Paths are absolute; None and empty stand for an option that the user left out."""

    nodes: int | None = _option(
        Section.WHERE, "Number of nodes; on Slurm the session holds them until its end",
        whole(1), "N", "each recipe's nodes", short=True,
    )  # fmt: skip
    gpus_per_node: int | None = _option(
        Section.WHERE, "GPUs used on each node; 0 trains on the CPU",
        whole(0), "N", "the system's, else each recipe's", short=True,
    )  # fmt: skip
    nodes_per_run: int | None = _option(
        Section.WHERE, "Nodes of one run; every recipe then runs once on each group of N nodes",
        whole(1), "N", "all nodes", short=True, ini=False,
    )  # fmt: skip
    cluster: str = _words(
        Section.WHERE, "Start runs as Slurm jobs, as processes of this machine, or inside this process",
        "auto|slurm|local|debug", short=True,
    )  # fmt: skip
    system: str | None = _option(
        Section.WHERE, "The cluster, by name or by its YAML file", str, "NAME|FILE", "slurm or local", short=True,
    )  # fmt: skip
    gate: Literal["auto", "on", "off", "links"] = _words(
        Section.WHERE, "Keep nodes that fail a check out of later work; with links, links are measured all the same",
        "auto|on|off|links", "auto, on when checks and runs are selected",
    )  # fmt: skip
    quarantine: Path | None = _option(
        Section.WHERE, "File of unfit nodes to exclude; newly found unfit nodes are appended", Path, "FILE", short=True,
    )  # fmt: skip
    partition: str | None = _option(Section.SLURM, "Slurm partition", str, "NAME", "the system's", short=True)
    slurm: Mapping[str, str] = _option(
        Section.SLURM, "An option of sbatch, such as account=NAME; may be given several times", parse_pair, "KEY=VALUE",
        "the system's", short=True, repeatable=True,
    )  # fmt: skip
    time: int | None = _option(
        Section.SLURM, "Wall-clock limit of each Slurm job and of every run in it, in Slurm's notation",
        parse_minutes, "TIME", "each recipe's time_limit", short=True,
    )  # fmt: skip
    max_wait: int | None = _option(
        Section.SLURM, "Longest wait of each Slurm job in the queue, in Slurm's notation", parse_minutes, "TIME",
    )  # fmt: skip
    scale: Literal["full", "smoke"] = _words(
        Section.WHAT, "The published configuration, or the same code at a tiny shape", "full|smoke", short=True
    )
    plan: bool = _flag("Print what would run, the scripts and the node-hours, and submit nothing", short=True)
    replay: ReplayedFolder | None = _option(
        Section.WHAT, "Judge the logs in this folder instead of running anything, by the recipes of today or, "
        "as-recorded, by those in a session's records", ReplayedFolder.parse,
        "[as-recorded:]DIR", short=True, ini=False,
    )  # fmt: skip
    resume: str | None = _option(
        Section.WHAT, "Go on with a session whose process died; without a value, the newest that did not end",
        str, "SESSION", short=True, ini=False, bare=layout.NEWEST,
    )  # fmt: skip
    run_dir: Path = _option(
        Section.WHAT, "Folder for records, scripts and logs; on a cluster, on a file system that all nodes share",
        Path, "DIR", "reports",
    )  # fmt: skip
    session_name: str | None = _option(
        Section.WHAT, "Name of the session's folder in the run directory; a name that is taken is refused",
        name_of_session, "NAME", "time and digits", ini=False,
    )  # fmt: skip
    session_time: int | None = _option(
        Section.WHAT, "Longest wall clock of the session, in Slurm's notation; then it ends as at Ctrl-C",
        parse_minutes, "TIME",
    )  # fmt: skip
    budget: float | None = _option(
        Section.WHAT, "Most GPU-hours that runs and checks may take by their time limits", positive_hours, "HOURS",
    )  # fmt: skip
    repeat: int | None = _option(
        Section.WHAT, "Runs of each recipe, one after the other, that are judged together",
        whole(1), "N", "each test's `repeats`, else 1", ini=False,
    )  # fmt: skip
    retries: int = _option(
        Section.WHAT, "Further attempts of a run whose Slurm job was lost, preempted or started twice, or lost a node",
        whole(0), "N", "0", value=0,
    )  # fmt: skip
    inconclusive: Literal["fail", "rerun", "warn"] = _words(
        Section.WHAT, "For a threshold too close to decide: fail the test, make further runs first, or skip it",
        "fail|rerun|warn",
    )  # fmt: skip
    early_verdict: bool = _flag("End a run as soon as every threshold of its tests is decided")
    require: Path | None = _option(
        Section.WHAT, "File of required verdicts: clauses of a contract and their tests", Path, "FILE"
    )
    require_verdict: Literal["yes", "no"] | None = _words(
        Section.WHAT, "End with exit code 10 if no threshold judged the speed of a run; without a value it means yes",
        "yes|no", "yes at scale full", value=None, bare="yes",
    )  # fmt: skip
    history: Path | str | None = _option(
        Section.WHAT, "Database that gets this session's records at its end: a file, or "
        "postgresql://USER@HOST/DATABASE", lambda text: text if "://" in text else Path(text), "URL",
    )  # fmt: skip
    compare_to: Wanted | None = _option(
        Section.WHAT, "Compare the speed of each run with earlier ones in --llmbench-history: a regression beyond the "
        "uncertainty of both fails", Wanted.parse, "last[:N]|best|tag:NAME|commit:SHA",
    )  # fmt: skip
    simulate: Any = _option(
        Section.WHAT, "Cause a fault in a rank of each run in that step, or a lasting one in all ranks",
        fault, "FAULT[@STEP]", ini=False,
    )  # fmt: skip

    allocation: Literal["session", "run"] | None = _words(
        None, "Hold nodes for the session, or make a Slurm job per run", "session|run",
        "run on Slurm without --nodes and outside a Slurm job, else session", value=None,
    )  # fmt: skip
    max_runs: int | None = _option(None, "Most runs at the same time", whole(1), "N", "as many as the nodes allow")
    first_run_alone: str = _words(None, "Run the first run alone, to warm shared caches of compiled kernels", "no|yes")
    heartbeat_timeout: float = _option(
        None, "Seconds without a sign of life from pytest after which its jobs, nodes and ranks end themselves",
        timeout_of, "SECONDS", "60", value=TTL_S,
    )  # fmt: skip
    group_tolerance: Quantity | None = _option(
        None, "Share by which the steps of a group of nodes may be slower than those of the others",
        share, "SHARE", "3 percent on GPUs at scale full, else not compared",
    )  # fmt: skip
    exit_codes: Literal["usual", "detailed"] = _words(
        None, "Exit codes: usual (1 for every failure), or detailed (1 slow, 11 undecided, 12 incomplete, 13 broken, "
        "14 not measured)", "usual|detailed",
    )  # fmt: skip
    live: Literal["auto", "on", "off"] = _words(
        None, "Table of all runs while they go on: auto draws it on a terminal, without -s and outside of CI, and else "
        "writes lines; off does neither", "auto|on|off",
    )  # fmt: skip
    report: Literal["yes", "no"] = _words(
        None, "Write the report of the session for people, report.html, into its folder", "yes|no"
    )
    recipes: tuple[Path, ...] = ()
    systems: tuple[Path, ...] = ()


OPTIONS = tuple(
    Option(name=field_.name.replace("_", "-"), **field_.metadata) for field_ in fields(Options) if field_.metadata
)
KEY = pytest.StashKey[Options]()
INI_KEYS = (*(f"{_PREFIX}{option.key}" for option in OPTIONS if option.ini), *(_PREFIX + kind for kind in FOLDERS))


def add_ini_keys(parser: pytest.Parser) -> None:
    """Declare the ini keys."""
    for option in OPTIONS:
        if option.ini:
            kind: Any = "linelist" if option.repeatable else None
            parser.addini(_PREFIX + option.key, option.description, type=kind, default=None)
    for kind, text in FOLDERS.items():
        parser.addini(_PREFIX + kind, text, type="paths", default=[])


def add_options(parser: pytest.Parser, config: pytest.Config) -> None:
    """Declare the options, once, and keep which short forms are left out because another plugin has them."""
    if hasattr(config.option, f"{_PREFIX}plan"):
        return
    left_out = []
    for option in OPTIONS:
        if option.section is not None:
            group = parser.getgroup(option.section.name, option.section)
            attributes = {"dest": _PREFIX + option.key, "help": option.description, **option.attributes}
            try:
                group.addoption(*option.forms, **attributes)
            except argparse.ArgumentError:
                left_out.append(option.forms[0])
                group.addoption(option.forms[-1], **attributes)
    config.stash[_LEFT_OUT] = tuple(left_out)


def loaded_by_conftest(manager: pytest.PytestPluginManager) -> bool:
    """True if conftest files are loaded already, as where one of them names this plugin in its `pytest_plugins`."""
    return any(Path(getattr(plugin, "__file__", None) or "").name == "conftest.py" for plugin in manager.get_plugins())


def left_out_lines(config: pytest.Config, *, used: bool) -> list[str]:
    """Name the short forms that belong to others, and what to write in their place.

    `used` decides whether to do so where the command line has one of them, whose user may have meant ours, or else.
    """
    forms: tuple[str, ...] = config.stash.get(_LEFT_OUT, ())
    words = {str(word).partition("=")[0] for word in config.invocation_params.args}
    if not forms or words.isdisjoint(forms) is used:
        return []
    instead = ", ".join(f"--llmbench-{form.removeprefix('--')}" for form in forms)
    verb = "belongs" if len(forms) == 1 else "belong"
    return [f"llmbench: {', '.join(forms)} {verb} to another plugin or conftest.py: write {instead}"]


def options_of(config: pytest.Config) -> Options:
    """The options of a session that has begun."""
    return config.stash[KEY]


def read_options(config: pytest.Config) -> Options:
    """Read all options: from the command line, else from the ini file.

    Raises ConfigError if an ini value is illegal, or names a folder that is missing.
    """
    values: dict[str, Any] = {option.key: read_option(config, option) for option in OPTIONS}
    values |= {kind: tuple(_folders(config, kind)) for kind in FOLDERS} | {"run_dir": run_dir_of(config)}
    return Options(**{name: value for name, value in values.items() if value is not None})


def read_option(config: pytest.Config, option: Option) -> Any:
    """Read one option; None where the user left it out. Raises ConfigError: its ini value is illegal."""
    typed = config.getoption(_PREFIX + option.key, None)
    if option.parse is None:
        return typed or None
    if option.repeatable:
        return dict([*_from_ini(config, option), *map(option.parse, typed or ())]) or None
    if typed is not None:
        return _absolute(option.parse(typed), config.invocation_params.dir)
    # A path in an ini file means the same from whichever folder pytest is started.
    folder = config.inipath.parent if config.inipath else config.rootpath
    value = next(_from_ini(config, option), None)
    if option.key == "system" and isinstance(value, str) and (folder / value).is_file():
        return str(folder / value)
    return _absolute(value, folder)


def run_dir_of(config: pytest.Config) -> Path:
    """Read the folder of all sessions' folders alone, for a process in which the session has yet to begin."""
    option = next(option for option in OPTIONS if option.key == "run_dir")
    given: Path | None = read_option(config, option)
    return given or config.invocation_params.dir / option.default


def plan_only(config: pytest.Config) -> bool:
    """True if `--plan` is given, also before a session of ours begins."""
    return bool(config.getoption(f"{_PREFIX}plan"))


def is_given(config: pytest.Config) -> bool:
    """True if the command line has any of our options."""
    return any(config.getoption(_PREFIX + option.key, None) for option in OPTIONS)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn mistakes of the user into usage errors: their message without a traceback."""
    try:
        yield
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def _from_ini(config: pytest.Config, option: Option) -> Iterator[Any]:
    """Yield the values of an option in the ini file, of which only a repeatable one has several."""
    given = (config.getini(_PREFIX + option.key) or ()) if option.ini and option.parse is not None else ()
    for text in [given] if isinstance(given, str) else given:
        try:
            yield option.parse(text)  # type: ignore[misc]  # a flag is in no ini file
        except ConfigError as error:
            raise ConfigError(f"ini option {_PREFIX}{option.key}: {error}") from error


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, ReplayedFolder):
        return replace(value, folder=_absolute(value.folder, folder))
    return folder / value.expanduser() if isinstance(value, Path) else value


def _folders(config: pytest.Config, kind: str) -> Iterator[Path]:
    for path in map(Path, config.getini(_PREFIX + kind)):
        if not path.is_dir():
            raise ConfigError(f"ini option {_PREFIX}{kind}: {path} is not a folder")
        yield path.resolve()


def _checked(parse: Callable[[str], Any]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check
