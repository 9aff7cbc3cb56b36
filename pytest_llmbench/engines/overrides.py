"""Rules for a recipe's `options.arguments`, which must agree with its fields; and checks that engines share.

They make sure that plan, FLOPs, references and gate are about the training that runs. An argument is one of:

- another name for a field of the recipe: it must agree, or the recipe is refused
- a change of the work of a step or a run that the recipe's fields leave out: the recipe is refused
- harmless: model and work stay as they are
- any other: the work of a step is unknown, and statistics of the model's FLOPs are left out

A log that prints its arguments is compared with the same table.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.recipes import Parallelism, Precision, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Setting, SettingsCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class Same:
    """An argument that a field of the recipe decides."""

    field: str
    allowed: tuple[Any, ...]  # values of the argument that agree with the field
    needed: bool = False  # whether a log that prints nothing for it, such as `None`, is of another training

    def agrees(self, value: Any) -> bool:
        """True if a value of the argument agrees with the field."""
        return any(_agree(value, due) for due in self.allowed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """An engine's table of its framework's arguments, and those of a recipe's options."""

    own: Mapping[str, Any] = field(default_factory=dict)  # of the recipe's options, by name
    same: Mapping[str, Same] = field(default_factory=dict)  # arguments that fields of the recipe decide, by name
    refused: Mapping[str, str] = field(default_factory=dict)  # refused arguments by name, with the effect of each
    harmless: Collection[str] = ()  # names of arguments that leave the model and its work as they are
    families: tuple[str, ...] = ()  # beginnings of further names of harmless arguments
    # Values of arguments that change the work of a step, unless the recipe gives them; a tuple has several of them.
    usual: Mapping[str, Any] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        """Yield each argument that contradicts the recipe or changes its work."""
        for name, value in self.own.items():
            rule, where = self.same.get(name), f"options.arguments: {name}: {value}"
            if rule is not None and not rule.agrees(value):
                yield (
                    f"{where} contradicts {rule.field} of the recipe, which asks for {_words(rule.allowed)}: set "
                    f"{rule.field}, and leave {name} out"
                )
            elif name in self.refused and _is_given(value):
                yield f"{where} {self.refused[name]}, which no key of a recipe can express: leave it out"

    def unknown(self) -> str | None:
        """Return the reason why the work of a step is unknown; None if each argument's effect on it is known."""
        names = [
            name for name, value in self.own.items()
            if _is_given(value) and name not in self.same and not self._is_harmless(name)
        ]  # fmt: skip
        effect = "may change what a step computes, and no key of the recipe shows how"
        return f"options.arguments {', '.join(names)} {effect}" if names else None

    def _is_harmless(self, name: str) -> bool:
        return name in self.harmless or _spelt(name).startswith(tuple(map(_spelt, self.families)))

    def compare(self, settings: Sequence[Setting]) -> SettingsCheck:
        """Compare the settings that a log prints with these rules.

        A log may print a name with `_` that a command line has with `-`, and one in a section that it lost.
        """
        names = [*{**self.refused, **self.usual, **self.same, **self.own}, *self.harmless]
        leaves = {_spelt(name.rpartition(".")[2]): name for name in names}
        # A shorter one, such as `name`, may be of any section.
        spelled = {leaf: name for leaf, name in leaves.items() if "_" in leaf} | {_spelt(name): name for name in names}
        differ, numbers, kinds = list[str](), dict[str, str](), dict[str, str]()
        for setting in settings:  # each value, as any of them may be that of the training
            name, value = spelled.get(_spelt(setting.name), setting.name), _OFF_OR_ON.get(setting.value, setting.value)
            open_ = setting.compared or "${" in setting.value  # the text of a reference to another setting
            rule = None if open_ else self._due(name)
            if rule is not None and (value is not None or rule.needed) and not rule.agrees(value):
                words = f"{setting.name} {setting.value}; {rule.field} of the recipe is {_words(rule.allowed)}"
                unclipped = rule.field == "optimizer.clip_grad_norm" and _agree(value, 0)  # no norm is taken
                if rule.field.startswith("optimizer.") and not unclipped:
                    numbers.setdefault(setting.name, words)
                else:
                    differ.append(f"{setting.where} says {words}")
            compared = setting.compared or rule is not None
            kinds.setdefault(setting.name, "compared" if compared else self._kind(name, value))
        unknown = sorted(name for name, kind in kinds.items() if kind == "unknown")
        counts = {kind: list(kinds.values()).count(kind) for kind in ("compared", _HARMLESS, _NOT_IN_USE)}
        parts = [
            f"{len(kinds)} settings printed",
            *(f"{count} {kind}" for kind, count in counts.items() if count or kind == "compared"),
        ]
        parts += [f"{len(unknown)} unknown: {listed(unknown)}"] * bool(unknown)
        unlike = f"; unlike the recipe, with the same work: {listed(numbers.values())}" if numbers else ""
        return SettingsCheck(differ=tuple(differ), summary=", ".join(parts) + unlike) if settings else SettingsCheck()

    def _kind(self, name: str, value: Any) -> str:
        """Return the kind of a printed setting that has no rule."""
        if self._is_harmless(name):
            return _HARMLESS
        return "unknown" if _is_given(value) else _NOT_IN_USE

    def _due(self, name: str) -> Same | None:
        """The rule of a printed setting, also of one in a family of harmless ones; None if any value will do."""
        ruled = name in self.usual or (name in self.refused and name not in self.harmless)
        values = self.usual.get(name)
        if name in self.own and (ruled or not self._is_harmless(name)):
            values = self.own[name]
            if set("/{") & set(str(values)):  # a path
                return None
        elif name in self.same or not ruled:
            return self.same.get(name)
        allowed = tuple(values) if isinstance(values, list | tuple) else (values,)
        return Same(field=f"options.arguments.{name}", allowed=allowed)


def values_of(recipe: Recipe, fields: Mapping[str, str], others: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the arguments that an engine gives, in the order of `fields`, which maps them to keys of the recipe.

    `others` has those that are not a plain value of a key, and further ones; None there leaves an argument out.
    """
    plain = {name: None if name in others else attrgetter(field)(recipe) for name, field in fields.items()}
    return {name: value for name, value in {**plain, **others}.items() if name not in others or value is not None}


def rules_of_given(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Same]:
    """Make rules of the arguments that an engine gives; `fields` maps them to keys of the recipe."""
    return {name: Same(field=fields.get(name, name), allowed=(value,)) for name, value in values.items()}


def rules_of(table: Mapping[str, tuple[str, *tuple[Any, ...]]]) -> dict[str, Same]:
    """Make rules of a table: by argument, the key of the recipe that decides it, and the values that agree with it."""
    return {name: Same(field=field, allowed=tuple(allowed)) for name, (field, *allowed) in table.items()}


_HARMLESS, _NOT_IN_USE = "without effect on the work of a step", "not in use"
# How Python and YAML print values that a command line gives, or leaves out.
_OFF_OR_ON = {
    **dict.fromkeys(("True", "true"), True), **dict.fromkeys(("False", "false"), False),
    **dict.fromkeys(("None", "null", "[]", ""), None),
}  # fmt: skip


def _spelt(name: str) -> str:
    return name.replace("-", "_")


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _agree(given: Any, due: Any) -> bool:
    """Compare as a command line does: `false` and null leave an argument out."""
    switches = [one for one in (given, due) if one is None or isinstance(one, bool)]
    if switches:
        return len(switches) == 2 and bool(given) is bool(due)
    try:
        return float(given) == float(due)
    except (TypeError, ValueError):
        return str(given) == str(due)


def _words(allowed: tuple[Any, ...]) -> str:
    return " or ".join("nothing" if legal is None or legal is False else str(legal) for legal in allowed)


def batch_problem(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield a refusal if the global batch is indivisible into micro batches on this many copies of the model.

    Ranks that are indivisible into copies are another refusal.
    """
    size = recipe.parallelism.model_parallel_size
    copies, rest = divmod(topology.world_size, size)
    if rest or recipe.samples_per_step % (copies * recipe.micro_batch_size) == 0:
        return
    who = "ranks" if size == 1 else "copies of the model"
    yield (
        f"a global batch of {recipe.samples_per_step} does not divide into micro batches of {recipe.micro_batch_size} "
        f"on {copies} {who} ({topology}); it does on {_fitting(recipe, topology, who)}"
    )


def layout_problems(
    engine: str, recipe: Recipe, lacks: Collection[str] = ("tensor", "pipeline", "virtual_pipeline", "sequence")
) -> Iterator[str]:
    """Yield refusals of an engine that lacks some kinds of parallelism, and has a linear decay alone."""
    asked, plain = recipe.parallelism, Parallelism()
    for kind in lacks:
        if getattr(asked, kind) != getattr(plain, kind):
            yield f"engine {engine} has no {kind} parallelism; engine megatron_core has"
    if asked.activation_checkpointing == "selective":
        yield f"engine {engine} checkpoints none or full, not selective"
    if recipe.optimizer.decay != "linear":
        yield f"engine {engine} decays the learning rate linearly only"


def _fitting(recipe: Recipe, topology: Topology, who: str, most: int = 1024) -> str:
    micro_batches, rest = divmod(recipe.samples_per_step, recipe.micro_batch_size)
    sizes = [] if rest else [size for size in range(1, most + 1) if micro_batches % size == 0]
    if not sizes:
        return f"no number of {who}: change a batch size"
    ranks, a_node = (size * recipe.parallelism.model_parallel_size for size in sizes), topology.ranks_per_node
    nodes = [number // a_node for number in ranks if number % a_node == 0]
    fewer, more = [n for n in nodes if n < topology.nodes], [n for n in nodes if n > topology.nodes]
    near = " or ".join(f"--nodes {number}" for number in (*fewer[-1:], *more[:1]) if topology.nodes > 1)
    return f"{', '.join(map(str, sizes))} {who}{': give ' if near else ''}{near}"


def precision_problem(recipe: Recipe, topology: Topology, supported: tuple[Precision, ...]) -> Iterator[str]:
    """Yield a refusal if this engine or these devices lack the recipe's precision."""
    if recipe.precision not in supported:
        yield f"precision {recipe.precision} is not one of {', '.join(supported)}"
    elif recipe.precision != "fp32" and topology.device == "cpu":
        yield (
            f"precision {recipe.precision} needs GPUs; this run has none: pass --scale smoke for the tiny CPU variant, "
            "or --gpus-per-node"
        )
