"""Every option: its name, its help, its twin in the ini file, and which of the two wins."""

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.keys import parse_pair
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe import recipes
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.history.wanted import Wanted
from pytest_llmbench.plugin.begin import begin
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.options import OPTIONS, ReplayedFolder, Section, options_of
from pytest_llmbench.session.journal.journal import Journal

# Options in the CI files of users: taking one away or renaming it breaks them.
SHORT = [
    "cluster", "gpus-per-node", "nodes", "nodes-per-run", "partition", "plan", "quarantine", "replay", "resume",
    "scale", "slurm", "system", "time",
]  # fmt: skip
LONG = [
    "budget", "compare-to", "early-verdict", "gate", "history", "inconclusive", "max-wait", "repeat", "require",
    "require-verdict", "retries", "run-dir", "session-name", "session-time", "simulate",
]  # fmt: skip
NOT_IN_INI = ["early-verdict", "nodes-per-run", "plan", "repeat", "replay", "resume", "session-name", "simulate"]
INI_ONLY = [
    "allocation", "exit-codes", "first-run-alone", "group-tolerance", "heartbeat-timeout", "live",
    "max-runs", "report",
]  # fmt: skip

# A legal text of each option with a value, and another one.
TEXTS = {
    "nodes": ("4", "8"), "gpus-per-node": ("0", "4"), "nodes-per-run": ("1", "2"), "cluster": ("slurm", "local"),
    "system": ("H200", "JUWELS_Booster"), "partition": ("one", "other"), "slurm": ("account=one", "account=other"),
    "time": ("01:30:00", "10"), "max-wait": ("01:30:00", "10"), "session-time": ("01:30:00", "10"),
    "scale": ("smoke", "full"), "repeat": ("1", "3"), "budget": ("1000", "2.5"), "retries": ("1", "5"),
    "run-dir": ("here", "there"), "replay": ("logs", "others"), "simulate": ("die@1", "die@2"),
    "resume": ("first", "second"), "gate": ("on", "off"), "quarantine": ("bad.txt", "worse.txt"),
    "require": ("clauses.yaml", "others.yaml"), "require-verdict": ("yes", "no"), "inconclusive": ("fail", "warn"),
    "history": ("postgresql://me@here/runs", "postgresql://me@there/runs"), "compare-to": ("best", "last:3"),
    "session-name": ("monday", "tuesday"), "allocation": ("session", "run"), "max-runs": ("1", "3"),
    "heartbeat-timeout": ("15", "600"), "group-tolerance": ("5 %", "0.02 1"), "live": ("on", "off"),
    "exit-codes": ("detailed", "usual"), "report": ("no", "yes"), "first-run-alone": ("yes", "no"),
}  # fmt: skip
IN_INI = [name for name in TEXTS if name not in NOT_IN_INI]
TYPED = [name for name in TEXTS if name not in INI_ONLY]


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the machine that runs these tests do not change the options."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def settings_of(pytester: pytest.Pytester, *args: str) -> Settings:
    """What pytest started with these arguments would run with."""
    config = pytester.parseconfigure(*args)
    begin(config)
    return bench_of(config).settings


def given(pytester: pytest.Pytester, name: str, *args: str) -> Any:
    """An option's value for the session that pytest would start with these arguments, as a text or a number."""
    config = pytester.parseconfigure(*args)
    begin(config)
    value = getattr(options_of(config), name.replace("-", "_"))
    value = value.folder if isinstance(value, ReplayedFolder) else value
    return value.name if isinstance(value, Path) else str(value) if name in {"simulate", "compare-to"} else value


def needed(pytester: pytest.Pytester, name: str) -> list[str]:
    """The files and other options without which the option means nothing."""
    for file in TEXTS["require"]:
        (pytester.path / file).write_text("clause 1: test_of_it\n")
    for session in TEXTS["resume"] if name == "resume" else ():
        Journal(pytester.path / "reports" / session / "journal").close()
    slurm = [] if name in {"cluster", "system"} else ["--cluster", "slurm"]
    return [*slurm, *(["--nodes", "8"] if name in {"allocation", "nodes-per-run"} else [])]


def meant(name: str, text: str) -> Any:
    if name in {"time", "max-wait", "session-time"}:
        return {"01:30:00": 90, "10": 10}[text]
    if name == "slurm":
        return {"account": text.partition("=")[2]}
    if name == "group-tolerance":
        return Quantity(text)
    if name == "budget":
        return float(text)
    if name == "compare-to":
        return str(Wanted.parse(text))
    return int(text) if text.isdecimal() else text


def test_the_names_are_these() -> None:
    """Adding an option is a decision: this list and the reference page change with it."""
    assert sorted(option.name for option in OPTIONS if option.forms) == sorted([*SHORT, *LONG])
    assert sorted(option.name for option in OPTIONS if option.short) == SHORT
    assert sorted(option.name for option in OPTIONS if not option.forms) == INI_ONLY
    assert sorted(option.name for option in OPTIONS if not option.ini) == NOT_IN_INI
    assert len([*SHORT, *LONG]) <= 28


def test_help_names_every_option_and_ini_key(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    sections = "\n".join(text.split(f"{group}:\n")[1].split("\n\n")[0] for group in Section)
    forms = re.findall(r"^  (?:--([\w-]+)\S*, )?--llmbench-([\w-]+)", sections, re.MULTILINE)
    assert sorted(long for _, long in forms) == sorted([*SHORT, *LONG])
    assert sorted(short for short, _ in forms if short) == SHORT
    keys = re.findall(r"^  llmbench_(\w+)", text, re.MULTILINE)
    assert sorted(keys) == sorted([*(name.replace("-", "_") for name in IN_INI), "recipes", "systems"])


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_reads_like_pytests_own(option: Any) -> None:
    assert option.help[0].isupper()
    assert not option.help.endswith(".")
    assert "%" not in option.help  # argparse would expand it


def test_every_option_is_tested_below() -> None:
    assert sorted(TEXTS) == sorted(option.name for option in OPTIONS if option.parse is not None)


@pytest.mark.parametrize("name", TYPED)
def test_an_option_is_read_from_the_command_line(pytester: pytest.Pytester, name: str) -> None:
    text, others = TEXTS[name][0], needed(pytester, name)
    for form in [f"--{name}", f"--llmbench-{name}"] if name in SHORT else [f"--llmbench-{name}"]:
        assert given(pytester, name, *others, form, text) == meant(name, text)


@pytest.mark.parametrize("name", IN_INI)
def test_the_ini_twin_does_the_same_and_the_command_line_wins(pytester: pytest.Pytester, name: str) -> None:
    configured, typed = TEXTS[name]
    pytester.makeini(f"[pytest]\nllmbench_{name.replace('-', '_')} = {configured}\n")
    assert given(pytester, name, *needed(pytester, name)) == meant(name, configured)
    if name in TYPED:
        assert given(pytester, name, *needed(pytester, name), f"--llmbench-{name}", typed) == meant(name, typed)


def test_options_reach_the_settings(pytester: pytest.Pytester) -> None:
    (pytester.path / "bad.txt").write_text("n1\nn2  # broken\n")
    settings = settings_of(
        pytester, "--cluster=slurm", "--nodes=8", "--nodes-per-run=2", "--gpus-per-node=4", "--time=10",
        "--partition=p", "--slurm=account=me", "--slurm=exclude=n9", "--slurm=comment=for the night",
        "--quarantine=bad.txt",
        "--llmbench-max-wait=20", "--llmbench-gate=links", "--llmbench-inconclusive=rerun", "--llmbench-retries=2",
        "--llmbench-budget=5", "--llmbench-repeat=3", "--llmbench-simulate=die@1", "-o", "llmbench_max_runs=2",
        "-o", "llmbench_first_run_alone=yes",
    )  # fmt: skip
    assert (settings.nodes, settings.nodes_per_run, settings.gpus_per_node) == (8, 2, 4)
    assert (settings.time_min, settings.max_wait_min, settings.retries, settings.budget) == (10, 20, 2, 5.0)
    assert (settings.repeat, settings.rerun, settings.max_runs, settings.first_run_alone) == (3, True, 2, True)
    assert (settings.gate, str(settings.simulate)) == ("links", "die@1")
    assert settings.slurm == {"partition": "p", "account": "me", "exclude": "n9,n1,n2", "comment": "for the night"}
    assert settings.quarantine == pytester.path / "bad.txt"


def test_pairs_of_the_ini_file_and_the_command_line_add_up(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nllmbench_slurm =\n    account=site\n    comment=two words\n")
    assert given(pytester, "slurm", "--slurm", "account=me", "--slurm", "qos=high") == {
        "account": "me", "comment": "two words", "qos": "high",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["account=", "account", "account=a\nb", "comment=\x1b[0m", "=x"])
def test_a_pair_that_cannot_stand_in_a_script_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_pair(text)


def test_an_empty_ini_value_is_none(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nllmbench_nodes =\n")
    assert settings_of(pytester, "--cluster", "local").nodes is None


def test_native_toml_values_are_read(pytester: pytest.Pytester) -> None:
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
    assert settings_of(pytester, "--nodes", "2", "-o", "llmbench_allocation=run").allocation == "run"
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert settings_of(pytester).allocation == "session"


def test_run_dir_is_below_where_pytest_was_started(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is relative to there, `~` is the home, and an absolute one is what it says."""
    monkeypatch.setenv("HOME", str(pytester.path / "home"))
    assert settings_of(pytester, "--cluster", "local").run_dir == pytester.path / "reports"
    assert (
        settings_of(pytester, "--cluster", "local", "--llmbench-run-dir", "~/mine").run_dir
        == pytester.path / "home" / "mine"
    )
    assert settings_of(pytester, "--cluster", "local", "--llmbench-run-dir", "/scratch/me").run_dir == Path(
        "/scratch/me"
    )


def test_own_recipes_and_systems_join_the_shipped_ones(pytester: pytest.Pytester) -> None:
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

    def noted(path: Path) -> dict[str, Any]:
        read.append(path)
        return read_yaml(path)

    monkeypatch.setattr(recipes, "read_yaml", noted)
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
    result.stderr.fnmatch_lines(["*cluster.yaml: *.yaml has a system 'H200', too: rename one of them"])
