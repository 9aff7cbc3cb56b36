"""Parameters of each rank, held against what frameworks printed."""

from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import ModelShape, Parallelism
from pytest_llmbench.judging.flops import parameters, parameters_of_stages

# Layers, hidden size, vocabulary, positions, tensor, pipeline; and what logs of real runs say of each stage.
PRINTED = [
    ((12, 768, 50257, 2048, 1, 1), (125262336,)),  # Megatron-LM core 0.19 on one H200
    ((12, 768, 50257, 512, 1, 1), (124082688,)),  # NeMo 2 in 2024
    ((2, 64, 128, 32, 2, 1), (60736,)),  # Megatron-LM core 0.16 on two CPU ranks
    ((36, 1280, 50257, 1024, 2, 2), (210753280, 209445120)),  # accelerate with Megatron-LM in 2022
    ((40, 5120, 50257, 2048, 2, 4), (1712942080, 1573350400, 1573350400, 1702466560)),  # Megatron-LM in 2021
    ((24, 1024, 50257, 1024, 1, 1), (354871296,)),  # Megatron-LM in 2020
]


@pytest.mark.parametrize(("shape", "printed"), PRINTED)
def test_a_stage_has_what_frameworks_print(shape: tuple[int, ...], printed: tuple[int, ...]) -> None:
    layers, hidden, vocabulary, positions, tensor, pipeline = shape
    heads: dict[str, Any] = {"attention_heads": 1, "vocab_size": vocabulary}
    layout = Parallelism(tensor=tensor, pipeline=pipeline)
    model = ModelShape(layers=layers, hidden_size=hidden, **heads)
    spans = parameters_of_stages(model, positions, layout)
    assert len(spans) == len(printed)
    assert all(span.low <= count <= span.high for span, count in zip(spans, printed, strict=True))
    for other in (layers - pipeline, layers + pipeline):
        changed = parameters_of_stages(ModelShape(layers=other, hidden_size=hidden, **heads), positions, layout)
        assert not any(span.low <= count <= span.high for span, count in zip(changed, printed, strict=True))


def test_a_model_in_one_piece_has_all_parameters() -> None:
    model = ModelShape(layers=12, hidden_size=768, attention_heads=12, vocab_size=50304)
    (span,) = parameters_of_stages(model, 2048, Parallelism())
    assert span.low < parameters(model, 2048) < span.high
