"""What the recipes for images name is there: files of the checkout, extras, and a Python that the package allows."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

CHECKOUT = Path(__file__).parents[2]
CONTAINERS = CHECKOUT / "containers"
IMAGES = ("Containerfile", "llmbench.def")
SCRIPT = (CONTAINERS / "install.sh").read_text()
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
# The Python of a release of Debian.
PYTHONS = {"12": "3.11", "13": "3.13"}


def copied(image: str) -> dict[str, str]:
    """Each path of the checkout that an image takes, and its place there."""
    text = (CONTAINERS / image).read_text()
    if image == "llmbench.def":
        section = text.partition("%files\n")[2].partition("\n\n")[0]
        return dict(line.split() for line in section.splitlines())
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("COPY ")]
    return {path: to + (Path(path).name if to.endswith("/") else "") for *paths, to in lines for path in paths}


@pytest.mark.parametrize("image", IMAGES)
def test_all_that_an_image_takes_is_there(image: str) -> None:
    taken = copied(image)
    assert [path for path in taken if not (CHECKOUT / path).exists()] == []
    needed = {
        "pyproject.toml", "constraints.txt", PROJECT["readme"], *PROJECT["license-files"], "pytest_llmbench", "suites",
    }  # fmt: skip
    assert {path: taken.get(path) for path in needed} == {path: f"/opt/source/{path}" for path in needed}
    script = taken["containers/install.sh"]
    assert re.search(rf"^(RUN| ) *{script} ", (CONTAINERS / image).read_text(), re.MULTILINE)


def test_images_differ_in_nothing_but_their_format() -> None:
    """They take the same files and begin with the same Debian, whose Python the package allows and is tested with."""
    one, other = (copied(image) for image in IMAGES)
    assert one == other
    bases = {re.search(r"(?im)^from:? (\S+/debian:(\d+)-slim)$", (CONTAINERS / image).read_text()) for image in IMAGES}
    (release,) = {found[2] for found in bases if found is not None}
    assert None not in bases
    assert SpecifierSet(PROJECT["requires-python"]).contains(PYTHONS[release])
    assert f"Programming Language :: Python :: {PYTHONS[release]}" in PROJECT["classifiers"]


def test_an_image_installs_extras_that_there_are() -> None:
    (named,) = re.findall(r"/opt/source\[([\w,]+)\]", SCRIPT)
    assert "torch" in named.split(",")
    assert set(named.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_its_environment_on_the_path(image: str) -> None:
    assert "python3 -m venv /opt/llmbench\n" in SCRIPT
    assert "PATH=/opt/llmbench/bin:$PATH" in (CONTAINERS / image).read_text()


def test_another_pytorch_is_refused_before_anything_is_installed() -> None:
    done = subprocess.run(["sh", CONTAINERS / "install.sh", "rocm"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "TORCH is 'rocm': it can be cpu" in done.stderr
    assert (CONTAINERS / "install.sh").stat().st_mode & 0o111
