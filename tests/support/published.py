"""Shapes of models that others published, with the parameters that their pages count.

Shapes are those of `config.json` of the models on the Hugging Face hub, parameters those of their safetensors there, or
of the report that `source` names. GFLOP of a token follow from tables of Megatron-Bridge 067f987d (2026-08-22).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core.recipe.shape import ModelShape


@dataclass(frozen=True)
class Published:
    """One model."""

    name: str
    shape: ModelShape
    parameters: float | None
    sequence_length: int = 4096
    gflop: float | None = None


_LLAMA: Mapping[str, Any] = {
    "positions": "rope", "norm": "rms_norm", "activation": "swiglu", "biases": "none", "tied_embeddings": False,
    "dropout": 0,
}  # fmt: skip
_QWEN3: Mapping[str, Any] = {**_LLAMA, "vocab_size": 151936, "query_key_norm": True, "head_size": 128}
_DEEPSEEK: Mapping[str, Any] = {
    **_LLAMA, "layers": 61, "hidden_size": 7168, "head_size": 128, "feed_forward_size": 18432,
    "latent_attention": {"query_rank": 1536, "key_value_rank": 512, "rotary_size": 64, "value_size": 128},
}  # fmt: skip
_V3: Mapping[str, Any] = {
    **_DEEPSEEK, "attention_heads": 128, "vocab_size": 129280,
    "experts": {"number": 256, "top_k": 8, "feed_forward_size": 2048, "shared_size": 2048, "dense_layers": 3},
}  # fmt: skip
_OSS: Mapping[str, Any] = {
    **_LLAMA, "hidden_size": 2880, "attention_heads": 64, "query_groups": 8, "head_size": 64, "vocab_size": 201088,
    "biases": "all", "window": {"size": 128, "full_every": 2},
}  # fmt: skip
_NEMOTRON4: Mapping[str, Any] = {**_LLAMA, "norm": "layer_norm", "activation": "squared_relu", "vocab_size": 256000}


def _of(
    name: str, family: Mapping[str, Any], sizes: tuple[int, ...], parameters: float | None, **more: Any
) -> Published:
    keys = ("layers", "hidden_size", "attention_heads", "query_groups", "feed_forward_size")
    given = {**family, **dict(zip(keys, sizes, strict=False))}
    rest = {key: more.pop(key) for key in ("sequence_length", "gflop") if key in more}
    return Published(name, ModelShape.model_validate({**given, **more}), parameters, **rest)


def _sparse(number: int, top_k: int, size: int) -> dict[str, int]:
    return {"number": number, "top_k": top_k, "feed_forward_size": size}


_LLAMA3: Mapping[str, Any] = {**_LLAMA, "vocab_size": 128256}
MODELS = (
    _of("llama3.1-8b", _LLAMA3, (32, 4096, 32, 8, 14336), 8_030_261_248, sequence_length=8192, gflop=51.5),
    _of("llama3.1-70b", _LLAMA3, (80, 8192, 64, 8, 28672), 70_553_706_496, sequence_length=8192, gflop=449.2),
    _of("llama3.1-405b", _LLAMA3, (126, 16384, 128, 8, 53248), 405_853_388_800, sequence_length=8192, gflop=2524.2),
    _of("llama3.2-1b", _LLAMA3, (16, 2048, 32, 8, 8192), 1_235_814_400, tied_embeddings=True),
    _of("qwen2.5-7b", _LLAMA, (28, 3584, 28, 4, 18944), 7_615_616_512, vocab_size=152064, biases="qkv"),
    _of("qwen3-8b", _QWEN3, (36, 4096, 32, 8, 12288), 8_190_735_360),
    _of("qwen3-30b-a3b", _QWEN3, (48, 2048, 32, 4), 30_532_122_624, experts=_sparse(128, 8, 768), gflop=23.0),
    _of("qwen3-235b-a22b", _QWEN3, (94, 4096, 64, 4), 235_093_634_560, experts=_sparse(128, 8, 1536), gflop=148.0),
    _of("mixtral-8x7b", _LLAMA, (32, 4096, 32, 8), 46_702_792_704, vocab_size=32000, experts=_sparse(8, 2, 14336)),
    _of("gpt-oss-120b", _OSS, (36,), 116_829_156_672, experts=_sparse(128, 4, 2880), gflop=32.6),
    _of("gpt-oss-20b", _OSS, (24,), 20_914_757_184, experts=_sparse(32, 4, 2880)),
    _of("deepseek-v3", _V3, (), 671_026_419_200, gflop=249.7),
    # With one module for the token after the next; its page counts copies of embedding and output layer, too.
    _of("deepseek-v3-mtp", _V3, (), None, further_predictions=1, gflop=260.0),
    _of(
        "kimi-k2", _DEEPSEEK, (), None, attention_heads=64, vocab_size=163840,
        experts={**_sparse(384, 8, 2048), "shared_size": 2048, "dense_layers": 1}, gflop=204.4,
    ),
    _of("nemotron4-15b", _NEMOTRON4, (32, 6144, 48, 8, 24576), 15.6e9),
    _of("nemotron4-340b", _NEMOTRON4, (96, 18432, 96, 8, 73728), 341e9),
)  # fmt: skip
