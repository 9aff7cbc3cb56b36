"""Engine deepspeed's optimizer with ZeRO 0 in bf16: all parameters are one tensor, and no bad step gets through."""

import json
import textwrap
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.workloads.conftest import Fork, MakeRecipe

pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None or find_spec("transformers") is None,
    reason="needs DeepSpeed and transformers: pip install 'pytest-llmbench[deepspeed]'",
)

# Two steps, then two in which rank 1 has a gradient that is not finite, then a good one again.
ENTRY = """
    import json

    import torch
    from torch.profiler import ProfilerActivity, profile

    from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
    from pytest_llmbench.core.recipe.recipes import Recipe
    from pytest_llmbench.core.schema import validate
    from pytest_llmbench.engines.deepspeed.ranks.run import join
    from pytest_llmbench.workloads.rank.rendezvous import process_group


    def steps(context, log):
        recipe = validate(Recipe, context.config, "recipe")
        with process_group(context, 120) as device:
            join(device)
            from torch.nn.functional import cross_entropy
            from pytest_llmbench.engines.deepspeed.ranks.zero import build
            from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, ZeroModel
            from pytest_llmbench.workloads.training.tokens import batch, open_tokens

            options = validate(DeepSpeedOptions, recipe.options, "options")
            rank = context.rank
            setup = Setup(recipe=recipe, options=options, device=device, rank=rank, rank_batch=2)
            model = ZeroModel(setup, build(setup))
            inputs, targets = batch(open_tokens(recipe), 2 * rank, 2, device)
            parameters = list(model.engine.module.parameters())
            weights = lambda: torch.cat([parameter.detach().float().flatten() for parameter in parameters])
            found = {"tensors": sum(len(g["params"]) for g in model._optimizer.param_groups), "steps": []}
            factor = torch.ones(())
            parameters[0].register_hook(lambda gradient: gradient * factor)
            for step, spoil in enumerate([1.0, 1.0, float("inf"), float("nan"), 1.0], start=1):
                factor.fill_(spoil if rank == 1 else 1.0)
                logits = model.engine(inputs).logits
                model.engine.backward(cross_entropy(logits.flatten(0, 1).float(), targets.flatten()))
                before = weights()
                with profile(activities=[ProfilerActivity.CPU]) as seen:
                    model.step(step)
                calls = [event.name for event in seen.events()]
                changed = (weights() - before).abs().max().item()
                found["steps"].append({
                    "norm": float(model.grad_norm), "changed": changed,
                    "waits": sum(name in ("aten::is_nonzero", "aten::item") for name in calls),
                })
        if rank == 0:
            (context.folder / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("flat")
    (folder / "five_steps.py").write_text(textwrap.dedent(ENTRY))
    recipe = make_recipe(engine="deepspeed", compile=False, precision="bf16")
    for rank in fork(folder, "five_steps:steps", config=recipe.model_dump(mode="json")):
        assert rank.wait(120) == 0, (folder / "output-0").read_text()
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


def test_a_step_that_is_not_finite_changes_nothing_and_the_host_hardly_ever_waits(found: dict[str, Any]) -> None:
    """The norm is of all gradients, which one tensor holds: a step asks its device for that alone."""
    _, second, *spoiled, after = found["steps"]
    assert all(0 < step["norm"] < 100 and step["changed"] > 0 for step in (second, after))
    assert [step["changed"] for step in spoiled] == [0, 0]
    assert not any(0 <= step["norm"] < float("inf") for step in spoiled)
    assert found["tensors"] == 1
    assert all(step["waits"] <= 3 for step in found["steps"])


def test_it_is_adamw() -> None:
    """Steps are those of `torch.optim.AdamW`, and changes of its groups are theirs."""
    from deepspeed.ops.adam import FusedAdam  # noqa: PLC0415 - optional

    from pytest_llmbench.engines.deepspeed.ranks.zero import FlatAdamW  # noqa: PLC0415 - as above

    torch.manual_seed(1)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    settings: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "fused": True}
    flat, adamw = FlatAdamW(ours.parameters(), **settings), torch.optim.AdamW(theirs.parameters(), **settings)
    assert isinstance(flat, FusedAdam)
    for step in range(3):
        for model, optimizer in ((ours, flat), (theirs, adamw)):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert [int(state["step"]) for state in flat.state.values()] == [3, 3]
