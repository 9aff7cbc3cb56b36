"""Containers: the same command, bare or inside an image, by the runtime that a system's file names."""

import shlex
from collections.abc import Iterable, Sequence

from pytest_llmbench.core.recipe.environments import MOUNT_FLAGS, Container


def srun_options(container: Container, folder: str) -> list[str]:
    """Options of srun that start its tasks inside the image, as words for a shell: pyxis' options, else empty."""
    if container.runtime != "pyxis":
        return []
    options = [
        f"--container-image={container.image}",
        f"--container-mounts={','.join((f'{folder}:{folder}', *container.mounts))}",
        f"--container-workdir={container.workdir or folder}",
        "--container-mount-home" if container.mount_home else "--no-container-mount-home",
        *container.args,
    ]
    return [shlex.quote(option) for option in options]


def inside(container: Container, words: Sequence[str], folder: str, variables: Iterable[str]) -> list[str]:
    """Wrap a command, given as words for a shell, so that it runs inside the image on the node it is started on.

    The run's folder is mounted at its own path, and the environment variables of these names go inside.
    """
    if container.runtime == "pyxis":  # srun starts its tasks inside the image
        return list(words)
    workdir, flag = shlex.quote(container.workdir or folder), MOUNT_FLAGS[container.runtime]
    mounts = map(shlex.quote, (f"{folder}:{folder}", *container.mounts))
    mounted = [word for mount in mounts for word in (flag, mount)]
    env = [word for name in variables for word in ("--env", name)]
    args, image = map(shlex.quote, container.args), shlex.quote(container.image)
    if container.runtime == "apptainer":  # the whole environment goes inside; `--env` would show values to `ps`
        no_home = [] if container.mount_home else ["--no-home"]
        return ["apptainer", "exec", "--nv", *no_home, *mounted, "--pwd", workdir, *args, image, *words]
    if container.runtime == "docker":
        return [
            "docker", "run", "--rm", "--gpus=all", "--network=host", "--ipc=host", "--ulimit=memlock=-1",
            "--ulimit=stack=67108864", "--user", '"$(id -u):$(id -g)"', *mounted,
            *(["--volume", '"$HOME:$HOME"'] if container.mount_home else []), *env, "--workdir", workdir, *args, image,
            *words,
        ]  # fmt: skip
    home = "ENROOT_MOUNT_HOME=" + ("yes" if container.mount_home else "no")
    # enroot lacks an option for the working directory.
    return ["env", home, "enroot", "start", "--rw", *mounted, *env, *args, image, "env", f"--chdir={workdir}", *words]
