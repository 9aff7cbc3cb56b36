"""Preparations of a run: a recipe's list, with the names of a system's environment filled in."""

import re
import shlex
from collections.abc import Iterable

from pytest_llmbench.cluster.containers import inside, srun_options
from pytest_llmbench.core.recipe.environments import Container, Environment, fill_in
from pytest_llmbench.core.recipe.recipes import Preparation, Recipe
from pytest_llmbench.core.wire.driver import VARIABLES
from pytest_llmbench.core.wire.foreign import mapped
from pytest_llmbench.engines.base import Place

_MODULE = re.compile(r"\bpytest_llmbench(?:\.\w+)+")


def preparations(recipe: Recipe, place: Place) -> tuple[Preparation, ...]:
    """Preparations of a run, with every name of the environment filled in."""
    where, wanted = f"recipe {recipe.name}: prepare", (*_own_modules(recipe), *recipe.prepare)
    names = {**place.environment.names, "run": str(place.folder)}
    return tuple(
        item.model_copy(
            update={
                key: fill_in(text, names, f"{where}: {item.name}")
                for key in ("path", "check", "make")
                if (text := getattr(item, key)) is not None
            }
        )
        for item in wanted
    )


def _own_modules(recipe: Recipe) -> tuple[Preparation, ...]:
    """Modules of this package that a recipe needs in the framework's own environment: its options name them."""
    found: dict[str, None] = {}

    def note(text: str) -> str:
        found.update(dict.fromkeys(_MODULE.findall(text)))
        return text

    mapped(recipe.options, note)
    return tuple(
        Preparation(
            name=f"own-module-{number}",
            check=f"{{python}} -c 'from importlib.util import find_spec as find; assert find(\"{module}\")'",
            make="{python} -m pip install --no-deps pytest-llmbench, or PYTHONPATH of a checkout in its `env`",
            why=f"the recipe runs {module}, a module of pytest-llmbench, by the framework's own interpreter",
        )
        for number, module in enumerate(found, 1)
    )


def setup_of(environment: Environment) -> tuple[str, ...]:
    """The shell lines that make an environment usable, in the order in which a run's script has them."""
    if environment.env_file is None:
        return environment.setup
    # What the system's file says of a variable counts, whatever is in the file of `export` lines.
    own = (f"export {name}={shlex.quote(value)}" for name, value in environment.env.items())
    return (f". {shlex.quote(environment.env_file)}", *own, *environment.setup)


def opened(container: Container, place: Place, variables: Iterable[str]) -> str:
    """The start of a shell command line, whose rest runs inside the image on the first node of a run.

    The environment variables of these names go inside.
    """
    folder = str(place.folder)
    if container.runtime == "pyxis":
        once = ["srun", "--nodes=1", "--ntasks=1", '--nodelist="$LLMBENCH_FIRST_HOST"']
        return " ".join([*once, *srun_options(container, folder)])
    return " ".join(inside(container, [], folder, sorted({*variables, *VARIABLES})))
