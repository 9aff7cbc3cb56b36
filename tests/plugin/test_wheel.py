"""The wheel: what `pip install` brings is enough to write a test and run a shipped recipe."""

import json
import re
import shutil
import time
import tomllib
import zipfile
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import INSTALLED, made_once
from tests.support.browser import DESKTOP, PHONE, browsing, kept, missing
from tests.support.priority import before_others
from tests.support.wheels import CHECKOUT, build_ours, install, install_without_a_network, wheelhouse

# A user's whole benchmark.
MINE = '''\
"""The smallest OPT on this machine."""

import pytest
from pytest_llmbench import Quantity


@pytest.mark.recipe("opt125m")
def test_learns(run):
    """It is quick enough to be worth anything, and it learns."""
    assert run.throughput >= Quantity("1 words/s")
    assert run.loss_drop >= Quantity("0.1 nat")
'''


LOCAL = ("--scale", "smoke", "--cluster", "local", "--gpus-per-node", "0")
SUITES = (
    "--pyargs", "pytest_llmbench.suites.validation", "pytest_llmbench.suites.training",
    "-k", "shared_folder or software or opt125m",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(made_once(tmp_path_factory, "wheel", build_ours).glob("*.whl"))


def test_the_wheel_holds_what_is_needed_and_no_more(wheel: Path) -> None:
    """The package with its type marker and its suites, each file once; no tests of its own."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(set(names)) == len(names)
    assert "pytest_llmbench/py.typed" in names
    suites = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "suites").rglob("*.*") if path.is_file()}
    suites = {name for name in suites if not name.endswith(".pyc")}
    inside = {name.removeprefix("pytest_llmbench/") for name in names if name.startswith("pytest_llmbench/suites/")}
    assert inside == suites
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_llmbench"}


def test_the_wheel_announces_all_that_pyproject_does(wheel: Path) -> None:
    """One entry for each engine, check, and folder of recipes and systems."""
    announced = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        told = ConfigParser(delimiters="=")
        told.read_string(archive.read(name).decode())
    assert {group: dict(told[group]) for group in announced} == announced


def test_an_installed_wheel_runs_a_shipped_recipe(wheel: Path, tmp_path: Path) -> None:
    """It finds its suites, and runs a check and a recipe of them."""
    installed = install(tmp_path, wheel)
    (installed.folder / "test_mine.py").write_text(MINE)
    with before_others():
        done = installed.pytest(*LOCAL, "test_mine.py", *SUITES, "-v")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^test_mine\.py::test_learns\[opt125m\] +PASSED", done.stdout, re.MULTILINE)
    assert re.search(r"^software +PASS", done.stdout, re.MULTILINE)
    assert re.search(r"^opt125m .* PASS", done.stdout, re.MULTILINE)
    answer = installed.python("-c", "import pytest_llmbench; print(pytest_llmbench.__file__)")
    assert answer.stdout.startswith(str(installed.environment))


def test_a_newcomer_gets_a_first_verdict(wheel: Path, tmp_path: Path) -> None:
    """Wheels alone and no network: `llmbench init`, `doctor`, a shipped suite, one test that passes, and its report."""
    newcomer = install_without_a_network(tmp_path, wheelhouse(tmp_path / "wheels", wheel), "pytest-llmbench")
    assert not (newcomer.packages / "torch").exists()
    done = newcomer.pytest("--pyargs", "pytest_llmbench.suites.validation", "--collect-only", "-q", "-k", "software")
    assert done.returncode == 0, done.stdout
    assert "software" in done.stdout
    shutil.copytree(INSTALLED, newcomer.packages, dirs_exist_ok=True)  # an engine without PyTorch
    command, began = str(newcomer.environment / "bin" / "llmbench"), time.monotonic()
    assert wheel.name.split("-")[1] in newcomer.run(command, "--version").stdout
    for words in (("init", "site", "--engine", "unigram"), ("validate", "site/recipes/first.yaml")):
        done = newcomer.run(command, *words)
        assert done.returncode == 0, done.stdout
    site = replace(newcomer, folder=newcomer.folder / "site")
    done = site.run(command, "doctor", "--json")
    parts = {part["part"]: part for part in json.loads(done.stdout)}
    wanting = {name for name, part in parts.items() if part["needed"] and part["state"] != "ok"}
    assert wanting <= {"Slurm"}, done.stdout  # its commands may be installed where none runs
    done = site.pytest("--scale", "smoke", *LOCAL[2:], "test_training.py")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^first .* loss_drop .* PASS", done.stdout, re.MULTILINE), done.stdout
    report = shutil.copy(site.folder / "reports" / "latest" / "report.html", tmp_path)
    print(f"from an empty folder to the report, without pip: {time.monotonic() - began:.1f} s")
    done = site.run(command, "prune", "--keep", "0", "--json")
    assert [row["fate"] for row in json.loads(done.stdout)] == ["delete"]
    if why := missing():
        pytest.skip(f"all holds but for the report, which nobody opened: {why}")
    look_at(Path(report), tmp_path)


def look_at(report: Path, folder: Path) -> None:
    """Open a newcomer's report on a desk and on a phone: one PASS, all figures, no complaint; and keep the pictures."""
    with browsing(folder / "profile") as browser:
        for name, width in (("desktop", DESKTOP), ("phone", PHONE)):
            browser.resize(width, 900)
            browser.open(report)
            assert browser.run("return document.querySelector('h1').textContent") == "PASS One verdict: PASS"
            assert browser.run("return document.getElementById('shown').textContent") == "1 verdict"
            browser.screenshot(kept(f"first-report-{name}", folder))
            browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
            browser.screenshot(kept(f"first-report-{name}-open", folder))
            assert browser.run("return document.documentElement.scrollWidth - innerWidth") == 0
            assert browser.console() == []
