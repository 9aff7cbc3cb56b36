"""NVIDIA's launcher of NeMo Megatron (`bignlp-scripts`): it writes a job's script, which then runs on our nodes.

Azure uses it as of 22.06, on the host; AWS as of 22.09, inside the image. Both versions would submit their own job: an
option prevents it, and the script they wrote runs instead.
"""

import shlex
from collections.abc import Mapping
from typing import Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.external import Argument, ProgramOptions, fill
from pytest_llmbench.engines.nemo.base import BEGIN, END, Nemo, common_arguments, hydra_words, shape_arguments


class NemoLauncherOptions(ProgramOptions):
    """Options of this engine."""

    version: Literal["22.06", "22.09"]
    """Version of the launcher, passed to it."""
    training: str
    """Launcher's configuration file of the model, such as `gpt3/126m`."""


class NemoLauncher(Nemo):
    """See `base.Engine`."""

    name = "nemo_launcher"
    options = NemoLauncherOptions

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        """Let the launcher write its script, and run the script.

        Raises ConfigError if srun, or a folder of the launcher or the data, is missing.
        """
        if not place.slurm:
            raise ConfigError("the script that NeMo's launcher writes calls srun: run it with --cluster slurm")
        options = options_of(recipe, NemoLauncherOptions)
        where = f"recipe {recipe.name}: options"
        root = fill("{root}", place, where)
        old = options.version == "22.06"
        # The old launcher writes its script into its own folder, over another of that name.
        unique = f"{place.folder.parent.parent.name}-{place.folder.name}"
        name = unique if old else options.training.replace("/", "_")
        own = _GIVEN_22_06 if old else _given_22_09(topology, place)
        given = {**_given(recipe, topology, place, options, name), **own}
        generate = Command(
            launcher="once",
            argv=(
                *shlex.split(place.environment.python),
                f"{root}/main.py",
                *hydra_words({**given, **options.arguments}, place, where),
            ),
            env={"HYDRA_FULL_ERROR": "1", **({} if old else {"BIGNLP_DEBUG": "1"})},
            folder=root,
            bare=old,
        )
        train = Command(  # noqa: S604 - a field of ours
            launcher="once",
            argv=("\n".join(_train_22_06(root, name, place) if old else _train_22_09(root, name, place)),),
            # As in the batch script that it was written for: srun reads it.
            env={"SLURM_GPUS_PER_NODE": str(topology.gpus_per_node)} if topology.gpus_per_node else {},
            bare=True,
            shell=True,
        )
        return Script(commands=(generate, train), notes=options.notes)


def _given(
    recipe: Recipe, topology: Topology, place: Place, options: NemoLauncherOptions, name: str
) -> dict[str, Argument]:
    container, env = place.environment.container, place.environment.env
    own = {f"{path}:{path}" for path in (place.environment.root, place.environment.data)}  # it mounts these itself
    hours, minutes = divmod(place.time_limit_min, 60)
    return {
        "training": options.training, "cluster_type": "bcm", "bignlp_path": "{root}", "data_dir": "{data}",
        "base_results_dir": "{run}/results",
        "container_mounts": tuple(mount for mount in container.mounts if mount not in own) if container else (),
        "container": container.image if container else None,
        **{f"env_vars.{name}": env[name] for name in _ENV_VARS[options.version] if name in env},
        "cluster.gpus_per_node": topology.gpus_per_node, "training.run.name": name,
        "training.run.time_limit": f"{hours:02d}:{minutes:02d}:00",
        **{f"training.{name}": value for name, value in common_arguments(recipe, topology).items()},
        **{f"++training.{name}": value for name, (_, value) in shape_arguments(recipe).items()},
    }  # fmt: skip


_ENV_VARS_22_06 = (
    "NCCL_TOPO_FILE", "UCX_IB_PCI_RELAXED_ORDERING", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_TIMEOUT", "NCCL_DEBUG",
)  # fmt: skip
_ENV_VARS = {"22.06": _ENV_VARS_22_06, "22.09": (*_ENV_VARS_22_06, "NCCL_PROTO")}

# `debug` is what keeps it from submitting.
_GIVEN_22_06: Mapping[str, Argument] = {
    "debug": True, "run_data_preparation": False, "run_training": True, "run_conversion": False,
    "run_finetuning": False, "run_evaluation": False,
}  # fmt: skip


def _given_22_09(topology: Topology, place: Place) -> dict[str, Argument]:
    container = place.environment.container
    home = "--container-mount-home" if container and container.mount_home else "--no-container-mount-home"
    return {
        "stages": ("training",),
        "++cluster.stderr_to_stdout": True,
        "cluster.srun_args": (home, *(container.args if container else ())),
        "++cluster.nodes": topology.nodes,
    }


def _train_22_06(root: str, name: str, place: Place) -> list[str]:
    script = shlex.quote(f"{place.folder}/train.sh")
    return ["set -e", f"mv {shlex.quote(f'{root}/bignlp/train_scripts/{name}.sh')} {script}", f". {script}"]


def _train_22_09(root: str, name: str, place: Place) -> list[str]:
    script = shlex.quote(f"{place.folder}/results/{name}/bignlp-{name}_submission.sh")
    edits = ["-e 's|^srun |/usr/bin/time srun |'"]
    if place.environment.container is not None:
        # The launcher is in the image, and its folder is missing on the node, so its mount is removed.
        edits.append(f"-e {shlex.quote(f's|{root}:{root},||')}")
    return ["set -e", f"sed -i {' '.join(edits)} {script}", BEGIN, f". {script}", END]


ENGINE = NemoLauncher()
