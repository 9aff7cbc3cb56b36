"""The model is the one that the numbers are computed for, also where products are joined with what follows them."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.torch.ranks import linear_cross_entropy as module
from pytest_llmbench.engines.torch.ranks.decoder import Decoder, initialise, linear_relu
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import linear_cross_entropy, losses_and_gradient, parts
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import batch, open_tokens
from tests.conftest import known
from tests.unit.workloads.conftest import MakeRecipe, TrainAlone, close, losses, norms

SHAPE = ModelShape(layers=3, hidden_size=16, attention_heads=4, vocab_size=64, dropout=0.0)


def build(shape: ModelShape = SHAPE, *, activation_checkpointing: bool = False) -> Decoder:
    """Build and initialise a small decoder of 8 positions."""
    model = Decoder(shape, 8, activation_checkpointing=activation_checkpointing)
    initialise(model, seed=1)
    return model


def changed(keys: Mapping[str, Any]) -> ModelShape:
    return ModelShape.model_validate({**SHAPE.model_dump(), **keys})


LLAMA: Mapping[str, Any] = {
    "positions": "rope", "query_groups": 2, "feed_forward_size": 40, "activation": "swiglu", "norm": "rms_norm",
    "biases": "none", "tied_embeddings": False, "rotary": {"base": 5e5},
}  # fmt: skip
QWEN: Mapping[str, Any] = {**LLAMA, "head_size": 6, "query_key_norm": True}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "llama": LLAMA,
    "stretched": {**LLAMA, "rotary": {"scaling": {"factor": 4, "positions": 64}}},
    "qwen": QWEN,
    "experts": {**QWEN, "experts": {"number": 6, "top_k": 2, "feed_forward_size": 16}},
    "more experts than tokens": {**QWEN, "experts": {"number": 40, "top_k": 1, "feed_forward_size": 8}},
    "all experts, shared ones, a dense layer": {**LLAMA, "activation": "squared_relu",
                                                "experts": {"number": 3, "top_k": 3, "feed_forward_size": 8,
                                                            "shared_size": 10, "dense_layers": 1}},
    "qkv": {**LLAMA, "biases": "qkv", "tied_embeddings": True, "query_groups": 1},
    "nemotron": {**LLAMA, "norm": "layer_norm", "activation": "squared_relu", "rotary": {"fraction": 0.5}},
    "gelu": {"activation": "gelu", "query_key_norm": True, "head_size": 8},
}  # fmt: skip


@pytest.mark.parametrize("shape", [
    *(changed(keys) for keys in SHAPES.values()),
    ModelShape(layers=12, hidden_size=768, attention_heads=12, vocab_size=51196),
], ids=[*SHAPES, "opt125m"])  # fmt: skip
def test_the_parameter_count_is_the_one_flops_are_computed_from(shape: ModelShape) -> None:
    with torch.device("meta"):
        model = Decoder(shape, 2048, activation_checkpointing=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(shape, 2048)


def test_the_first_loss_is_that_of_a_guess() -> None:
    """Untrained, the model knows nothing: its loss is ln(vocab_size)."""
    inputs = torch.arange(16).view(2, 8)
    targets = inputs.flip(0)  # the tied embedding gives an input itself a little more
    assert build()(inputs, targets).item() == pytest.approx(math.log(64), abs=0.02)


def test_no_token_sees_a_later_one() -> None:
    """A change of the last input changes no gradient that comes from the first target."""
    model = build()
    inputs = torch.arange(8).view(1, 8)
    changed = inputs.clone()
    changed[0, -1] = 42
    only_first = torch.full((1, 8), -100)  # cross entropy ignores this target
    only_first[0, 0] = 1
    assert torch.equal(model(inputs, only_first), model(changed, only_first))


def test_checkpointing_changes_no_gradient() -> None:
    shape = SHAPE.model_copy(update={"dropout": 0.5})
    inputs = torch.arange(16).view(2, 8)
    results = []
    for activation_checkpointing in (False, True):
        model = build(shape, activation_checkpointing=activation_checkpointing)
        torch.manual_seed(3)
        loss = model(inputs, inputs)
        loss.backward()
        results.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    (kept, kept_gradients), (recomputed, recomputed_gradients) = results
    assert kept == recomputed
    torch.testing.assert_close(kept_gradients, recomputed_gradients)


def test_initial_values_have_the_published_spread() -> None:
    """Matrices have deviation 0.006, those that end a branch less by √(2 L); biases are 0 and norms 1."""
    values = dict(build(SHAPE.model_copy(update={"hidden_size": 128})).named_parameters())
    assert values["blocks.1.qkv.weight"].std().item() == pytest.approx(0.006, rel=0.02)
    assert values["blocks.1.mlp_out.weight"].std().item() == pytest.approx(0.006 / math.sqrt(6), rel=0.02)
    assert values["blocks.1.qkv.bias"].abs().max().item() == 0
    assert set(values["blocks.1.mlp_norm.weight"].tolist()) == {1.0}
    assert not torch.equal(values["blocks.0.qkv.weight"], values["blocks.1.qkv.weight"])


@pytest.mark.parametrize("name", SHAPES)
def test_the_model_computes_what_its_shape_says(name: str) -> None:
    """Loss and gradient are those of a decoder that is written out, head by head, in fp64."""
    shape = changed(SHAPES[name])
    model = build(shape)
    with torch.no_grad():  # values at which every part matters
        for index, weight in enumerate(model.parameters()):
            weight.normal_(0.0, 0.4, generator=torch.Generator().manual_seed(index))
    inputs, targets = torch.arange(16).view(2, 8) * 3 % 64, torch.arange(16).view(2, 8) * 5 % 64
    model(inputs, targets).backward()
    whole = {key: weight.detach().double().requires_grad_() for key, weight in model.named_parameters()}
    expected, uneven = written_out(whole, shape, inputs, targets)
    torch.autograd.backward(expected + 0.001 * uneven)
    assert model(inputs, targets).item() == pytest.approx(expected.item(), rel=1e-5)
    for key, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, known(whole[key].grad).float(), rtol=1e-3, atol=1e-5, msg=key)


def test_experts_train_as_the_model_that_is_written_out(make_recipe: MakeRecipe, train_alone: TrainAlone) -> None:
    """Loss and norm of the gradient are those of all 12 steps; without the term for an even load, they are others."""
    experts = {"number": 8, "top_k": 2, "feed_forward_size": 24, "shared_size": 8}
    recipe = make_recipe(model={**LLAMA, "query_groups": 1, "experts": experts})
    trained, settings = train_alone(recipe), recipe.optimizer
    for factor, alike in ((0.001, True), (0.0, False)):
        model = Decoder(recipe.model, recipe.sequence_length, activation_checkpointing=False)
        initialise(model, seed=1)
        whole = {key: weight.detach().double().requires_grad_() for key, weight in model.named_parameters()}
        optimizer = torch.optim.AdamW(
            whole.values(), betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )
        expected = []
        for step in range(1, recipe.steps + 1):
            data = batch(open_tokens(recipe), (step - 1) * 8, 8, torch.device("cpu"))
            loss, uneven = written_out(whole, recipe.model, *data)
            torch.autograd.backward(loss + factor * uneven)
            norm = torch.nn.utils.clip_grad_norm_(whole.values(), settings.clip_grad_norm)
            optimizer.param_groups[0]["lr"] = learning_rate(settings, step, recipe.steps)
            optimizer.step()
            optimizer.zero_grad()
            expected += [loss.item(), norm.item()]
        found = [value for both in zip(losses(trained), norms(trained), strict=True) for value in both]
        assert (found == close(expected)) is alike, (factor, found, expected)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler about itself, which it takes for errors of the code
def test_a_layer_of_experts_is_one_graph() -> None:
    """Compiled, it never waits for the device to say how many tokens an expert has."""
    inputs, model = torch.arange(16).view(2, 8), build(changed(SHAPES["experts"]))
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(inputs, inputs)
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False, backend="aot_eager")
        loss = model(inputs, inputs)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_pytorch_without_grouped_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functional, "grouped_mm")
    with pytest.raises(ConfigError, match=r"not_measured: model\.experts needs PyTorch 2\.10 or newer, not \d"):
        build(changed(SHAPES["experts"]))


def activated(inner: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    match shape.activation:
        case "swiglu":
            gate, up = inner.chunk(2, -1)
            return gate * gate.sigmoid() * up
        case "gelu":
            return inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        case other:
            return inner.clamp(min=0) ** (2 if other == "squared_relu" else 1)


def turned(head: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    if shape.positions == "learned":
        return head
    width, scaling, out = int(shape.head_width * shape.rotary.fraction), shape.rotary.scaling, head.clone()
    for pair in range(width // 2):
        speed = shape.rotary.base ** (-2 * pair / width)
        if scaling is not None:
            turns = scaling.positions * speed / (2 * math.pi)
            kept = min(1.0, max(0.0, (turns - scaling.low) / (scaling.high - scaling.low)))
            speed = kept * speed + (1 - kept) * speed / scaling.factor
        angle = torch.arange(head.shape[-2], dtype=torch.float64) * speed
        one, other = head[..., pair], head[..., pair + width // 2]
        out[..., pair] = one * angle.cos() - other * angle.sin()
        out[..., pair + width // 2] = other * angle.cos() + one * angle.sin()
    return out


def by_experts(
    weights: Mapping[str, torch.Tensor], at: str, shape: ModelShape, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of all experts, where those beyond the `top_k` of a token have the weight 0, and how uneven their load is."""
    experts = known(shape.experts)
    odds = (values @ weights[f"{at}.router.weight"].T).softmax(-1)
    best = odds >= odds.sort(dim=-1, descending=True).values[..., experts.top_k - 1, None]
    share = odds * best / (odds * best).sum(-1, keepdim=True)
    out = torch.zeros_like(values)
    for index, (first, last) in enumerate(zip(weights[f"{at}.weight_in"], weights[f"{at}.weight_out"], strict=True)):
        out = out + share[..., index, None] * (activated(values @ first.T, shape) @ last.T)
    if experts.shared_size:
        inner = activated(values @ weights[f"{at}.shared_in.weight"].T, shape)
        out = out + inner @ weights[f"{at}.shared_out.weight"].T
    load = best.double().mean(1) * experts.number / experts.top_k
    return out, (load * odds.mean(1)).sum(-1).mean()


def written_out(
    weights: Mapping[str, torch.Tensor], shape: ModelShape, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of a decoder, and how uneven the load of its experts is.

    Queries, keys and values are consecutive rows of one matrix, gates those before the inputs.
    """
    uneven = torch.zeros((), dtype=torch.float64)

    def norm(values: torch.Tensor, name: str) -> torch.Tensor:
        if shape.norm == "layer_norm":
            return functional.layer_norm(values, values.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])
        return values / (values.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def linear(values: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(values, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    d, heads, groups = shape.head_width, shape.attention_heads, shape.key_value_heads
    hidden = weights["tokens.weight"][inputs]
    if shape.positions == "learned":
        hidden = hidden + weights["positions.weight"]
    future = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool).triu(1)
    for layer in range(shape.layers):
        at = f"blocks.{layer}"
        parts = torch.split(linear(norm(hidden, f"{at}.attention_norm"), f"{at}.qkv"), d, dim=-1)
        mixed = []
        for head in range(heads):
            group = head * groups // heads
            query, key, value = parts[head], parts[heads + group], parts[heads + groups + group]
            if shape.query_key_norm:
                query, key = norm(query, f"{at}.query_norm"), norm(key, f"{at}.key_norm")
            scores = turned(query, shape) @ turned(key, shape).transpose(1, 2) / math.sqrt(d)
            mixed.append(scores.masked_fill(future, -math.inf).softmax(-1) @ value)
        hidden = hidden + linear(torch.cat(mixed, -1), f"{at}.attention_out")
        values = norm(hidden, f"{at}.mlp_norm")
        if layer >= shape.layers - shape.expert_layers:
            routed, load = by_experts(weights, f"{at}.experts", shape, values)
            hidden, uneven = hidden + routed, uneven + load
        else:
            hidden = hidden + linear(activated(linear(values, f"{at}.mlp_in"), shape), f"{at}.mlp_out")
    logits = norm(hidden, "head.norm") @ weights["tokens.weight" if shape.tied_embeddings else "output.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), uneven


TOKENS, WIDTH = 96, 32


def factors(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, an embedding, and targets of which one does not count."""
    generator = torch.Generator().manual_seed(vocab_size)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, requires_grad=True)
    embedding = torch.randn(vocab_size, WIDTH, generator=generator, requires_grad=True)
    targets = torch.randint(vocab_size, (TOKENS,), generator=generator)
    targets[7] = -100
    return hidden, embedding, targets


@pytest.mark.parametrize("vocab_size", [128, 1001, 50])
@pytest.mark.parametrize("elements", [2**28, 2**12], ids=["whole", "in parts"])
def test_it_is_cross_entropy_of_the_product(vocab_size: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ELEMENTS", elements)
    hidden, embedding, targets = factors(vocab_size)
    ours = linear_cross_entropy(hidden, embedding, targets) / 3
    plain = functional.cross_entropy(functional.linear(hidden, embedding), targets) / 3
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(*(torch.autograd.grad(loss, (hidden, embedding)) for loss in (ours, plain)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_products_are_in_the_type_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, gradients are off by no more than its rounding, and the parameter's is fp32 all the same."""
    monkeypatch.setattr(module, "_ELEMENTS", 2**14)
    hidden, embedding, targets = factors(1001)
    plain = torch.autograd.grad(functional.cross_entropy(hidden @ embedding.T, targets), (hidden, embedding))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, embedding, targets)
    ours = torch.autograd.grad(loss, (hidden, embedding))
    assert loss.dtype == torch.float32
    for mine, exact in zip(ours, plain, strict=True):
        assert mine.dtype == torch.float32
        assert 0 < (mine - exact).norm() / exact.norm() < 2e-2


def test_padding_has_no_part_in_it() -> None:
    """Columns behind the vocabulary change no loss, and have no gradient, whatever is in them."""
    logits = torch.randn(4, 128)
    targets = torch.tensor([0, 99, 5, 7])
    share = torch.tensor(0.25)
    first = losses_and_gradient(logits, targets, share, 100)
    logits[:, 100:] = 1e4
    second = losses_and_gradient(logits, targets, share, 100)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert second[1][:, 100:].abs().max() == 0
    torch.testing.assert_close(second[0], functional.cross_entropy(logits[:, :100], targets, reduction="none"))


@given(tokens=st.integers(1, 2**20), vocab_size=st.integers(1, 2**18))
def test_parts_fit_and_are_equal_where_they_can_be(tokens: int, vocab_size: int) -> None:
    """No part is above the limit by more than one row, and powers of two are always cut into equal ones."""
    number = parts(tokens, vocab_size)
    assert (tokens // number) * vocab_size <= module._ELEMENTS
    if tokens & (tokens - 1) == 0 and number <= tokens:
        assert tokens % number == 0


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "autocast"])
def test_it_is_a_linear_layer_and_a_relu(bf16: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    factors = [torch.randn(*shape, generator=generator, requires_grad=True) for shape in ((4, 8, 16), (32, 16), (32,))]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        ours, plain = linear_relu(*factors), functional.relu(functional.linear(*factors))
    assert 0 < (ours > 0).sum() < ours.numel()
    torch.testing.assert_close(ours, plain)
    weight = torch.randn(ours.shape, generator=generator)
    for mine, theirs in zip(
        *(torch.autograd.grad((out.float() * weight).sum(), factors) for out in (ours, plain)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_its_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = ((3, 5), (7, 5), (7,))
    factors = [torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(linear_relu, factors)
