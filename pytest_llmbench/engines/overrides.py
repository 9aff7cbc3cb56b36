"""Rules for a recipe's `options.arguments`, which must agree with its fields, and refusals that engines share.

They make sure that plan, FLOPs, references and gate are about the training that runs. An argument is one of:

- another name for a field of the recipe: it must agree, or the recipe is refused
- a change of the work of a step or a run that the recipe's fields leave out: the recipe is refused
- harmless: model and work stay as they are
- any other: the work of a step is unknown, and statistics of the model's FLOPs are left out
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pytest_llmbench.core.recipe.recipes import Precision, Recipe
from pytest_llmbench.core.recipe.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Same:
    """An argument that a field of the recipe decides.

    Attributes:
        field: name of the field.
        allowed: values of the argument that agree with the field.
    """

    field: str
    allowed: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """An engine's table of its framework's arguments.

    Attributes:
        same: arguments that fields of the recipe decide, by name.
        refused: refused arguments by name, with the effect of each.
        harmless: names of arguments that leave the model and its work as they are.
        families: beginnings of further names of harmless arguments.
    """

    same: Mapping[str, Same]
    refused: Mapping[str, str] = field(default_factory=dict)
    harmless: Collection[str] = ()
    families: tuple[str, ...] = ()

    def problems(self, recipe: Recipe, own: Mapping[str, Any]) -> Iterator[str]:
        """Yield each argument that contradicts the recipe or changes its work."""
        for name, value in own.items():
            rule, where = self.same.get(name), f"recipe {recipe.name}: options.arguments: {name}: {value}"
            if rule is not None and not any(_agree(value, legal) for legal in rule.allowed):
                yield (
                    f"{where} contradicts {rule.field} of the recipe, which asks for {_words(rule.allowed)}: set "
                    f"{rule.field}, and leave {name} out"
                )
            elif name in self.refused and _is_given(value):
                yield f"{where} {self.refused[name]}, which no key of a recipe can express: leave it out"

    def unknown(self, own: Mapping[str, Any]) -> list[str]:
        """Return the arguments whose effect on the work of a step is unknown."""
        return [
            name for name, value in own.items()
            if _is_given(value) and name not in self.same and name not in self.harmless
            and not name.startswith(self.families)
        ]  # fmt: skip


# The rules of a framework's arguments, and the arguments of a recipe's options.
Arguments = tuple[Rules, Mapping[str, Any]]


def unknown_arguments(names: list[str]) -> str | None:
    """Return the reason why the work of a step is unknown; None without such arguments."""
    if not names:
        return None
    return f"options.arguments {', '.join(names)} may change what a step computes, and no key of the recipe shows how"


def rules_of_given(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Same]:
    """Make rules of the arguments that an engine gives; `fields` maps them to keys of the recipe."""
    return {name: Same(field=fields.get(name, name), allowed=(value,)) for name, value in values.items()}


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _agree(said: Any, due: Any) -> bool:
    """Compare as a command line does: `false` and null leave an argument out."""
    switches = [one for one in (said, due) if one is None or isinstance(one, bool)]
    if switches:
        return len(switches) == 2 and bool(said) is bool(due)
    try:
        return float(said) == float(due)
    except (TypeError, ValueError):
        return str(said) == str(due)


def _words(allowed: tuple[Any, ...]) -> str:
    return " or ".join("nothing" if legal is None or legal is False else str(legal) for legal in allowed)


def batch_problem(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield a refusal if the global batch is indivisible into micro batches on this many copies of the model."""
    copies = max(1, topology.world_size // recipe.parallelism.model_parallel_size)
    if recipe.samples_per_step % (copies * recipe.micro_batch_size) == 0:
        return
    who = "ranks" if recipe.parallelism.model_parallel_size == 1 else "copies of the model"
    yield (
        f"recipe {recipe.name}: a global batch of {recipe.samples_per_step} does not divide into "
        f"micro batches of {recipe.micro_batch_size} on {copies} {who} ({topology}); it does on "
        f"{_fitting(recipe, who)}"
    )


def _fitting(recipe: Recipe, who: str, most: int = 1024) -> str:
    micro_batches, rest = divmod(recipe.samples_per_step, recipe.micro_batch_size)
    sizes = [] if rest else [size for size in range(1, most + 1) if micro_batches % size == 0]
    return f"{', '.join(map(str, sizes))} {who}" if sizes else f"no number of {who}: change a batch size"


def precision_problem(
    recipe: Recipe, topology: Topology, supported: tuple[str, ...] = get_args(Precision)
) -> Iterator[str]:
    """Yield a refusal if this engine or these devices lack the recipe's precision."""
    if recipe.precision not in supported:
        yield f"recipe {recipe.name}: precision {recipe.precision} is not one of {', '.join(supported)}"
    elif recipe.precision != "fp32" and topology.device == "cpu":
        yield (
            f"recipe {recipe.name} is {recipe.precision} on GPUs; this run has none: pass --scale smoke for the tiny "
            "CPU variant, or --gpus-per-node"
        )
