"""The wheel: what `pip install` brings is enough to write a test and run a shipped recipe."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the checkout without network."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("wheel") / "source"
    left_out = shutil.ignore_patterns(".*", "reports", "__pycache__", "tests", "dist", "build")
    shutil.copytree(CHECKOUT, source, ignore=left_out)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source.parent), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = source.parent.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    """The wheel in an environment of its own.

    Attributes:
        environment: where it is installed.
        folder: an empty one, to work in.
    """

    environment: Path
    folder: Path

    def python(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run its Python in the empty folder."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHON"))}
        return subprocess.run(
            [str(self.environment / "bin" / "python"), *args],
            cwd=self.folder, env={**clean, "TMPDIR": str(self.folder.parent)}, check=False, timeout=200,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def pytest(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run pytest at scale smoke on this machine, without a file that says anything else."""
        local = ("--scale", "smoke", "--cluster", "local", "--gpus-per-node", "0")
        return self.python("-m", "pytest", "-p", "no:cacheprovider", *local, *args)


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    """The wheel installed. Everything else comes from where the tests run, but for this package as it is there."""
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for path in packages_here():
        (borrowed / path.name).symlink_to(path)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    return Installed(environment=environment, folder=folder)


def packages_here() -> list[Path]:
    """What is installed where the tests run, without this package and what only points elsewhere."""
    folders = [Path(folder) for folder in sys.path if Path(folder).name == "site-packages"]
    found = {path.name: path for folder in reversed(folders) for path in folder.iterdir()}
    return [path for name, path in found.items() if "llmbench" not in name and path.suffix != ".pth"]


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


def test_an_installed_wheel_runs_a_shipped_recipe(installed: Installed) -> None:
    """In an empty folder, with one test file and no ini file."""
    (installed.folder / "test_mine.py").write_text(MINE)
    done = installed.pytest()
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "PASS" in done.stdout
    answer = installed.python("-c", "import pytest_llmbench; print(pytest_llmbench.__file__)")
    assert answer.stdout.startswith(str(installed.environment))


def test_an_installed_wheel_runs_its_suites(installed: Installed) -> None:
    """By their names, in an empty folder: validation, then training."""
    suites = ("pytest_llmbench.suites.validation", "pytest_llmbench.suites.training")
    done = installed.pytest("--pyargs", *suites, "-k", "shared_folder or software or opt125m")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^software +PASS", done.stdout, re.MULTILINE)
    assert re.search(r"^opt125m .* PASS", done.stdout, re.MULTILINE)
