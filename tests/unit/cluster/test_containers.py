"""Containers: what each runtime is told, as words for a shell."""

import shlex
from typing import Any

import pytest

from pytest_llmbench.cluster.containers import inside, srun_options
from pytest_llmbench.core.recipe.environments import Container

FOLDER = "/shared/a run"


def container(runtime: str, **changes: Any) -> Container:
    """An image with everything that can be said of one."""
    given = {
        "image": "registry/train:23.03", "mounts": ("/fsx:/data:ro", "/a b:/a b"), "workdir": "/work dir",
        "mount_home": True, "args": ("--extra=a b",),
    }  # fmt: skip
    return Container.model_validate({"runtime": runtime, **given, **changes})


def words(options: list[str]) -> list[str]:
    return shlex.split(" ".join(options))


def test_pyxis_is_told_by_options_of_srun_and_nothing_is_wrapped() -> None:
    image = container("pyxis")
    assert words(srun_options(image, FOLDER)) == [
        "--container-image=registry/train:23.03",
        "--container-mounts=/shared/a run:/shared/a run,/fsx:/data:ro,/a b:/a b", "--container-workdir=/work dir",
        "--container-mount-home", "--extra=a b",
    ]  # fmt: skip
    assert inside(image, ["train"], FOLDER, ["NAME"]) == ["train"]


@pytest.mark.parametrize("runtime", ["enroot", "docker", "apptainer"])
def test_srun_is_told_nothing_of_another_runtime(runtime: str) -> None:
    assert srun_options(container(runtime), FOLDER) == []


def test_enroot() -> None:
    """The home by its own variable, the folder to start in by `env`, as enroot has no option for either."""
    assert words(inside(container("enroot"), ["train", "--now"], FOLDER, ["A", "B"])) == [
        "env", "ENROOT_MOUNT_HOME=yes", "enroot", "start", "--rw",
        "--mount", "/shared/a run:/shared/a run", "--mount", "/fsx:/data:ro", "--mount", "/a b:/a b",
        "--env", "A", "--env", "B", "--extra=a b", "registry/train:23.03",
        "env", "--chdir=/work dir", "train", "--now",
    ]  # fmt: skip


def test_apptainer() -> None:
    """The home is there unless it is refused, and no `--env`: a name alone is an error to it."""
    line = words(inside(container("apptainer"), ["train", "--now"], FOLDER, ["A"]))
    assert line == [
        "apptainer", "exec", "--nv", "--bind", "/shared/a run:/shared/a run", "--bind", "/fsx:/data:ro", "--bind",
        "/a b:/a b", "--pwd", "/work dir", "--extra=a b", "registry/train:23.03", "train", "--now",
    ]  # fmt: skip


def test_docker() -> None:
    """All GPUs, the host's network and shared memory, the user's own id, and the image last."""
    line = inside(container("docker"), ["train"], FOLDER, ["A"])
    assert '"$(id -u):$(id -g)"' in line
    assert '"$HOME:$HOME"' in line
    found = words(line)
    assert found[:3] == ["docker", "run", "--rm"]
    assert {"--gpus=all", "--network=host", "--ipc=host"} <= set(found)
    assert found[found.index("--workdir") + 1] == "/work dir"
    assert [found[at + 1] for at, word in enumerate(found) if word == "--volume"] == [
        "/shared/a run:/shared/a run", "/fsx:/data:ro", "/a b:/a b", "$HOME:$HOME",
    ]  # fmt: skip
    assert found[-4:] == ["/work dir", "--extra=a b", "registry/train:23.03", "train"]


@pytest.mark.parametrize(
    ("runtime", "here", "gone"),
    [("pyxis", "--no-container-mount-home", "--container-mount-home"),
     ("enroot", "ENROOT_MOUNT_HOME=no", "ENROOT_MOUNT_HOME=yes"),
     ("apptainer", "--no-home", "--env"),
     ("docker", "--rm", "$HOME:$HOME")],
)  # fmt: skip
def test_without_home_and_folder(runtime: str, here: str, gone: str) -> None:
    image = container(runtime, mount_home=False, workdir=None)
    found = words([*srun_options(image, FOLDER), *inside(image, ["train"], FOLDER, [])])
    assert here in found
    assert gone not in found
    where = {
        "pyxis": f"--container-workdir={FOLDER}", "enroot": f"--chdir={FOLDER}", "docker": FOLDER, "apptainer": FOLDER,
    }  # fmt: skip
    assert where[runtime] in found
