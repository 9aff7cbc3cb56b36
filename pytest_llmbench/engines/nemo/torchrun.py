"""NeMo started by torchrun on every node: NeMo 1's own script with a configuration file, or a program of NeMo 2.

AWS starts NeMo Megatron 22.09 so, past the launcher that comes with it.
"""

import shlex
from pathlib import PurePath

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Command, Place, Script, options_of
from pytest_llmbench.engines.external import Argument, ProgramOptions, fill, program_words
from pytest_llmbench.engines.nemo.base import BEGIN, END, Nemo, common_arguments, hydra_words, shape_arguments

# Keys of a recipe that are withheld from a program of NeMo 2.
_LEFT_OUT = {"options", "references", "prepare", "description", "source", "deadlines"}


class NemoTorchrunOptions(ProgramOptions):
    """Options of this engine."""

    program: str = "{root}/examples/nlp/language_modeling/megatron_gpt_pretraining.py"
    """Program of each rank: NeMo 1's script, or a program of NeMo 2, which is given `--folder` for its results and the
    recipe as JSON.
    """
    config: str | None = None
    """Launcher's configuration file of the model; null for a program of NeMo 2."""
    launcher_args: tuple[str, ...] = ()
    """Arguments of torchrun."""


class NemoTorchrun(Nemo):
    """See `base.Engine`."""

    name = "nemo_torchrun"
    options = NemoTorchrunOptions

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        options = options_of(recipe, NemoTorchrunOptions)
        where = f"recipe {recipe.name}: options"
        argv, before = [*program_words(options.program, place, where)], list[Command]()
        if options.program.startswith("module:"):
            facts = recipe.model_dump_json(exclude=_LEFT_OUT, exclude_defaults=True)
            argv += ["--folder", f"{place.folder}/results", "--recipe", facts]
        else:
            config = fill(options.config or "", place, where)
            before = [_own_config(config, place, where)]
            arguments = {**_given(recipe, topology), **options.arguments}
            argv += [
                f"--config-path={place.folder}/config",
                f"--config-name={PurePath(config).name}",
                *hydra_words(arguments, place, where),
            ]
        train = Command(
            launcher="torchrun", argv=tuple(argv), launcher_args=options.launcher_args, env={"HYDRA_FULL_ERROR": "1"},
            folder=place.environment.root,
        )  # fmt: skip
        return Script(commands=(*before, _shell(BEGIN, bare=True), train, _shell(END, bare=True)), notes=options.notes)


def _shell(line: str, *, bare: bool) -> Command:
    return Command(launcher="once", argv=(line,), shell=True, bare=bare)  # noqa: S604 - a field of ours


def _own_config(config: str, place: Place, where: str) -> Command:
    """Copy the launcher's `training` configuration to a file that is complete by itself."""
    folder = shlex.quote(f"{place.folder}/config")
    data = fill("{data}", place, where)
    edits = f"-e 's/training\\.//g' -e {shlex.quote(f's|${{data_dir}}|{data}|g')}"
    copy = f"{folder}/{shlex.quote(PurePath(config).name)}"
    return _shell(f"mkdir -p {folder} && sed {edits} {shlex.quote(config)} > {copy}", bare=False)


def _given(recipe: Recipe, topology: Topology) -> dict[str, Argument]:
    return {
        "run.results_dir": "{run}/results", "exp_manager.explicit_log_dir": "{run}/results",
        "trainer.enable_checkpointing": False, "trainer.val_check_interval": recipe.steps,
        "exp_manager.create_checkpoint_callback": False, **common_arguments(recipe, topology),
        **{f"++{name}": value for name, (_, value) in shape_arguments(recipe).items()},
    }  # fmt: skip


ENGINE = NemoTorchrun()
