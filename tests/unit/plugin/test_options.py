"""Every option: its name, its help, its twin in the ini file, and which of the two wins."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.settings import SLURM_OPTIONS, Settings
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe import recipes
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.history.trend.wanted import Wanted
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.options import FLAGS, OPTIONS, Section, value
from pytest_llmbench.plugin.ours import begin
from pytest_llmbench.session.journal.journal import Journal

# What users and their CI files hold on to: taking one away or renaming it breaks them.
NAMES = [
    "account", "allocation", "budget", "cluster", "comment", "compare-to", "constraint", "drain", "exclude",
    "exit-codes", "gate", "gpus-per-node", "group-tolerance", "heartbeat-timeout", "history", "inconclusive",
    "live", "max-runs", "max-wait", "metrics-file", "nodelist", "nodes", "nodes-per-run", "partition", "qos",
    "quarantine", "repeat", "replay", "report", "require", "require-verdict", "reservation", "resume", "retries",
    "run-dir", "scale", "session-name", "session-time", "simulate", "system", "time",
]  # fmt: skip
NAMES_OF_FLAGS = ["avoid-from-history", "early-verdict", "first-run-alone", "nccl", "plan"]
INI_ONLY = ["recipes", "systems"]

# A legal text of each option, and another one.
TEXTS = {
    "nodes": ("4", "8"),
    "gpus-per-node": ("0", "4"),
    "nodes-per-run": ("1", "2"),
    "cluster": ("slurm", "local"),
    "system": ("H200", "JUWELS_Booster"),
    "time": ("01:30:00", "10"),
    "max-wait": ("01:30:00", "10"),
    "session-time": ("01:30:00", "10"),
    "allocation": ("session", "run"),
    "scale": ("smoke", "full"),
    "repeat": ("1", "3"),
    "max-runs": ("1", "3"),
    "budget": ("1000", "2.5"),
    "retries": ("1", "5"),
    "heartbeat-timeout": ("15", "600"),
    "run-dir": ("here", "there"),
    "replay": ("logs", "others"),
    "simulate": ("die@1", "die@2"),
    "resume": ("first", "second"),
    "gate": ("on", "off"),
    "quarantine": ("bad.txt", "worse.txt"),
    "drain": ("print", "yes"),
    "require": ("clauses.yaml", "others.yaml"),
    "require-verdict": ("yes", "no"),
    "inconclusive": ("fail", "warn"),
    "live": ("on", "off"),
    "history": ("postgresql://me@here/runs", "postgresql://me@there/runs"),
    "compare-to": ("best", "last:3"),
    "exit-codes": ("detailed", "usual"),
    "metrics-file": ("here.prom", "there.prom"),
    "report": ("no", "yes"),
    "session-name": ("monday", "tuesday"),
    "group-tolerance": ("5 %", "0.02 1"),
    **dict.fromkeys(SLURM_OPTIONS, ("one", "other")),
}


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs these tests, the options mean the same."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def settings_of(pytester: pytest.Pytester, *args: str) -> Settings:
    """What pytest started with these arguments would run with."""
    config = pytester.parseconfigure(*args)
    begin(config)
    return bench_of(config).settings


def given(pytester: pytest.Pytester, name: str, *args: str) -> Any:
    """An option's value for the session that pytest would start with these arguments."""
    for file in TEXTS["require"]:
        (pytester.path / file).write_text("clause 1: test_of_it\n")
    for session in TEXTS["resume"] if name == "resume" else ():
        Journal(pytester.path / "reports" / session / "journal").close()
    config = pytester.parseconfigure(*args)
    begin(config)
    bench = bench_of(config)
    told: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(
            ("inconclusive", "group-tolerance", "exit-codes", "live", "report", "session-time"),
            lambda: value(config, name),
        ),
        **dict.fromkeys(("history", "compare-to"), lambda: str(value(config, name))),
        "metrics-file": lambda: value(config, name).name,
        "session-name": lambda: bench.session.folder.name,
        "resume": lambda: bench.session.id,
        "require": lambda: bench.requirements.name if bench.requirements else None,
        "require-verdict": lambda: "yes" if bench.requires_verdict else "no",
    }
    if name in told:
        return told[name]()
    return field(bench.settings, name)


def field(settings: Settings, name: str) -> Any:
    """An option's value in the settings."""
    if name in SLURM_OPTIONS:
        return settings.slurm.get(name)
    if name == "system":
        return settings.system.name
    if name == "simulate":
        return str(settings.simulate) if settings.simulate is not None else None
    if name in {"run-dir", "replay", "quarantine"}:
        return getattr(settings, name.replace("-", "_")).name
    return getattr(settings, {"time": "time_min", "max-wait": "max_wait_min"}.get(name, name.replace("-", "_")))


def arguments(name: str, text: str) -> list[str]:
    """The option, with what else it takes to mean something."""
    needed = {"allocation": ["--nodes", "8"], "nodes-per-run": ["--nodes", "8"], "cluster": []}
    slurm = [] if name in {"cluster", "system"} else ["--cluster", "slurm"]
    return [*slurm, *needed.get(name, []), f"--{name}", text]


def meant(name: str, text: str) -> Any:
    """What the text of an option means."""
    if name in {"time", "max-wait", "session-time"}:
        return {"01:30:00": 90, "10": 10}[text]
    if name == "group-tolerance":
        return Quantity(text)
    if name == "budget":
        return float(text)
    if name == "compare-to":
        return str(Wanted.parse(text))
    return int(text) if text.isdecimal() else text


def test_the_names_are_these() -> None:
    """Adding an option is a decision: this list, the reference page and the changelog change with it."""
    assert sorted(option.name for option in OPTIONS) == NAMES
    assert sorted(flag.name for flag in FLAGS) == NAMES_OF_FLAGS


def test_help_names_every_option_and_ini_key(pytester: pytest.Pytester) -> None:
    """`pytest --help` holds them all in both forms, in sections, and no other option of ours."""
    text = pytester.runpytest_inprocess("--help").stdout.str()
    sections = [text.split(f"{group}:\n")[1].split("\n\n")[0] for group in Section]
    forms = re.findall(r"^  --([\w-]+)\S*, --llmbench-([\w-]+)", "\n".join(sections), re.MULTILINE)
    assert sorted(forms) == sorted((name, name) for name in [*NAMES, *NAMES_OF_FLAGS])
    inis = sorted(re.findall(r"^  llmbench_(\w+)", text, re.MULTILINE))
    assert inis == sorted(name.replace("-", "_") for name in [*NAMES, *INI_ONLY])


@pytest.mark.parametrize("option", [*OPTIONS, *FLAGS], ids=lambda option: option.name)
def test_help_reads_like_pytests_own(option: Any) -> None:
    """It starts with a capital, and a single phrase has no full stop."""
    assert option.help[0].isupper()
    assert not option.help.endswith(".")
    assert "%" not in option.help  # argparse would expand it


def test_every_option_is_tested_below() -> None:
    """A new option needs two texts in this file."""
    assert sorted(TEXTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_option_reaches_the_settings(pytester: pytest.Pytester, name: str) -> None:
    """What is written on the command line is what runs."""
    text = TEXTS[name][0]
    *others, _, _ = short = arguments(name, text)
    assert given(pytester, name, *short) == meant(name, text)
    assert given(pytester, name, *others, f"--llmbench-{name}", text) == meant(name, text)


@pytest.mark.parametrize("name", NAMES)
def test_the_ini_twin_does_the_same(pytester: pytest.Pytester, name: str) -> None:
    """Site defaults belong into the ini file, under the option's name."""
    text = TEXTS[name][0]
    pytester.makeini(f"[pytest]\nllmbench_{name.replace('-', '_')} = {text}\n")
    assert given(pytester, name, *arguments(name, text)[:-2]) == meant(name, text)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_wins(pytester: pytest.Pytester, name: str) -> None:
    """What is typed today beats what was configured once."""
    configured, typed = TEXTS[name]
    pytester.makeini(f"[pytest]\nllmbench_{name.replace('-', '_')} = {configured}\n")
    assert given(pytester, name, *arguments(name, typed)) == meant(name, typed)


def test_an_empty_ini_value_is_none(pytester: pytest.Pytester) -> None:
    """`llmbench_nodes =` unsets it."""
    pytester.makeini("[pytest]\nllmbench_nodes =\n")
    assert settings_of(pytester, "--cluster", "local").nodes is None


def test_native_toml_values_are_read(pytester: pytest.Pytester) -> None:
    """In pyproject.toml every value of ours is a text."""
    pytester.makepyprojecttoml(
        '[tool.pytest]\nllmbench_nodes = "4"\nllmbench_cluster = "slurm"\nllmbench_recipes = ["."]\n'
    )
    assert settings_of(pytester).nodes == 4


def test_nothing_given_is_this_machine_or_slurm(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sbatch on PATH this machine is the cluster, with it Slurm is, and without --nodes every run is a job."""
    monkeypatch.setenv("PATH", str(pytester.path))
    here = settings_of(pytester)
    assert (here.cluster, here.system.name, here.scale) == ("local", "local", "full")
    sbatch = pytester.path / "sbatch"
    sbatch.touch(mode=0o755)
    there = settings_of(pytester)
    assert (there.cluster, there.system.name, there.allocation) == ("slurm", "slurm", "run")
    assert settings_of(pytester, "--nodes", "2").allocation == "session"
    assert settings_of(pytester, "--nodes", "2", "--allocation", "run").allocation == "run"
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert settings_of(pytester).allocation == "session"


def test_run_dir_is_below_where_pytest_was_started(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is relative to there, `~` is the home, and an absolute one is what it says."""
    monkeypatch.setenv("HOME", str(pytester.path / "home"))
    assert settings_of(pytester, "--cluster", "local").run_dir == pytester.path / "reports"
    assert settings_of(pytester, "--cluster", "local", "--run-dir", "~/mine").run_dir == pytester.path / "home" / "mine"
    assert settings_of(pytester, "--cluster", "local", "--run-dir", "/scratch/me").run_dir == Path("/scratch/me")


def test_own_recipes_and_systems_join_the_shipped_ones(pytester: pytest.Pytester) -> None:
    """The ini file names folders, and what is in them is found by name."""
    (pytester.path / "mine").mkdir()
    (pytester.path / "mine" / "cluster.yaml").write_text("name: mine\ncluster: slurm\npartition: big\n")
    pytester.makeini("[pytest]\nllmbench_systems = mine\n")
    assert settings_of(pytester, "--system", "mine").system.partition == "big"
    assert settings_of(pytester, "--system", "H200").system.name == "H200"


def test_a_recipe_file_is_read_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of recipes take seconds; the user's own are known by the folder of their file."""
    recipe = shipped("recipes") / "opt.yaml"
    (pytester.path / "mine").mkdir()
    (pytester.path / "mine" / "own.yaml").write_text(re.sub(r"\bopt(?=\d)", "own", recipe.read_text()))
    pytester.makeini("[pytest]\nllmbench_recipes = mine\n")
    read: list[Path] = []
    load = recipes._load_family

    def noted(path: Path, scale: Scale) -> dict[str, recipes.Recipe]:
        read.append(path)
        return load(path, scale)

    monkeypatch.setattr(recipes, "_load_family", noted)
    bench = bench_of(pytester.parseconfigure("--cluster", "local"))
    assert set(bench.recipes_of_unmarked) < set(bench.recipes)
    assert all(name.startswith("own") for name in bench.recipes_of_unmarked)
    assert len(read) == len(set(read))


def test_a_system_may_not_take_a_name_that_is_taken(pytester: pytest.Pytester) -> None:
    """Two systems of one name would make a record ambiguous."""
    (pytester.path / "mine").mkdir()
    (pytester.path / "mine" / "cluster.yaml").write_text("name: H200\ncluster: slurm\n")
    pytester.makeini("[pytest]\nllmbench_systems = mine\n")
    result = pytester.runpytest_inprocess("--system", "H200", "-n0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cluster.yaml: a system named 'H200' exists already; rename this one"])
