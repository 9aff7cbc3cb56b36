"""Real logs of other people's runs and of our own, each with the recipe that describes it, and how they are judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence, first_problem
from tests.support.samples import sample

_TRAIN = "module:metaseq.cli.train"
COMMON: Mapping[str, Any] = {"optimizer": {"learning_rate": 1.0e-3}, "time_limit": 5, "warm_up": {"steps": 2}}
GPT_125M = {"layers": 12, "hidden_size": 768, "attention_heads": 12, "vocab_size": 50257}
TINY = {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueLog:
    """A log, and what was run."""

    name: str  # of the file below `tests/data` or the folder of public samples
    engine: str
    recipe: Mapping[str, Any]
    ranks: int
    gpu: bool = True
    kind: str | None = None  # of the problem it has, None where it is sane

    def text(self) -> str:
        """The log; without the samples the test is skipped."""
        return sample(self.name).read_bytes().decode(errors="replace")

    def problem(self, folder: Path, text: str, **changes: Any) -> Problem | None:
        """Judge this log or a damaged copy of it, with fields of the recipe replaced."""
        return first_problem(self.evidence(folder, text, **changes))

    def evidence(self, folder: Path, text: str, **changes: Any) -> Evidence:
        """What the gate looks at, of this log or a damaged copy of it."""
        nodes = max(1, self.ranks // 8)
        each = self.ranks // nodes
        topology = Topology(nodes=nodes, gpus_per_node=each if self.gpu else 0, cpu_ranks_per_node=each)
        said = {"name": "run", "engine": self.engine, **COMMON, **self.recipe, **changes}
        recipe = validate(Recipe, said, "here").on(topology)
        engine, log = get_engine(self.engine), folder / "job.out"
        log.write_text(text)
        series = engine.read(log, recipe)
        return Evidence(
            recipe=recipe, topology=topology, series=series, hosts=(), wall_s=None, gpu=None, kind="command",
            doubts=tuple(engine.doubts(recipe, topology, series)), asks=engine.asks(recipe, topology),
            compared=engine.compare(recipe, topology, series),
        )  # fmt: skip


def megatron_lm(name: str, ranks: int, recipe: Mapping[str, Any], **more: Any) -> TrueLog:
    """A log of Megatron-LM."""
    return TrueLog(name=name, engine="megatron_lm", ranks=ranks, recipe=recipe, **more)


MEGATRON_H200 = megatron_lm(
    "logs/megatron_lm_one_h200.log",
    1,
    {
        "model": GPT_125M, "parallelism": {"sharding": "optimizer"}, "sequence_length": 2048, "global_batch_size": 32,
        "micro_batch_size": 8, "precision": "bf16", "steps": 40,
    },
)  # fmt: skip
MEGATRON_CPU = megatron_lm(
    "logs/megatron_lm_core_0.16.log",
    2,
    {
        "model": {**TINY, "dropout": 0.0}, "parallelism": {"tensor": 2}, "sequence_length": 32, "global_batch_size": 8,
        "micro_batch_size": 2, "precision": "fp32", "steps": 20,
    },
    gpu=False,
)  # fmt: skip
JSC_13B = megatron_lm(
    "logs/megatron_lm_13b_8_h200.log",
    8,
    {
        "model": {"layers": 40, "hidden_size": 5120, "attention_heads": 32, "vocab_size": 50304, "positions": "rope"},
        "parallelism": {
            "tensor": 2, "pipeline": 4, "sharding": "optimizer", "activation_checkpointing": "selective",
        },
        "sequence_length": 2048, "global_batch_size": 32, "micro_batch_size": 1, "precision": "fp16", "steps": 16,
    },
)  # fmt: skip
TORCHTITAN_CPU = TrueLog(
    name="logs/torchtitan_2_ranks.log", engine="torchtitan", ranks=2, gpu=False,
    recipe={
        "model": {
            "layers": 6, "hidden_size": 256, "attention_heads": 16, "feed_forward_size": 768, "vocab_size": 2048,
            "positions": "rope", "norm": "rms_norm", "activation": "swiglu", "biases": "none",
            "tied_embeddings": False, "dropout": 0.0, "rotary": {"base": 500000, "scaling": {}},
        },
        "parallelism": {"sharding": "full"}, "sequence_length": 64, "global_batch_size": 4,
        "micro_batch_size": 2, "precision": "fp32", "steps": 20, "options": {"flavor": "debugmodel"},
        "optimizer": {"learning_rate": 8.0e-4, "warmup_steps": 2},
    },
)  # fmt: skip
METASEQ_CPU = TrueLog(
    name="logs/metaseq_20_updates.log", engine="metaseq", ranks=2, gpu=False,
    recipe={
        "model": {**TINY, "attention_heads": 2, "vocab_size": 508},
        "options": {"model_size": "tiny", "program": _TRAIN, "arguments": {"decoder-ffn-embed-dim": 128}},
        "sequence_length": 64, "global_batch_size": 8, "micro_batch_size": 4, "precision": "fp32", "steps": 20,
    },
)  # fmt: skip
NEMO_2 = TrueLog(
    name="nemo/nemo2_gpt3_126m_nemo_log_globalrank-0.txt",
    engine="nemo_torchrun",
    ranks=1,
    recipe={
        "model": GPT_125M, "sequence_length": 512, "global_batch_size": 16, "micro_batch_size": 1, "precision": "bf16",
        "steps": 25,
    },
    kind="no_evidence_of_completion",  # the proof went to another file
)  # fmt: skip
CHAT: Mapping[str, Any] = {
    "sequence_length": 512, "gradient_accumulation_steps": 1, "precision": "fp16", "steps": 110,
    "optimizer": {"learning_rate": 1.0e-10, "warmup_steps": 10, "decay": "cosine"}, "warm_up": {"steps": 10},
    "options": {"step": 1},
}  # fmt: skip
OPT_350M = {"layers": 24, "hidden_size": 1024, "attention_heads": 16, "vocab_size": 50272, "dropout": 0.0}
OPT_13B = {"layers": 40, "hidden_size": 5120, "attention_heads": 40, "vocab_size": 50272}
LAMBDA_350M = TrueLog(
    name="lambda/opt-350m_1_1xN_batch0001.log", engine="deepspeed_chat", ranks=8,
    recipe={**CHAT, "model": OPT_350M, "micro_batch_size": 24},
)  # fmt: skip
LAMBDA_13B = TrueLog(
    name="lambda/opt-13b_1_1xN_batch0001.log", engine="deepspeed_chat", ranks=8,
    recipe={
        **CHAT, "model": OPT_13B, "micro_batch_size": 16, "parallelism": {"activation_checkpointing": "full"},
        "options": {"step": 1, "arguments": {"lora_dim": 128}},
    },
)  # fmt: skip
TRUE_LOGS = (MEGATRON_H200, MEGATRON_CPU, JSC_13B, TORCHTITAN_CPU, METASEQ_CPU, NEMO_2, LAMBDA_350M, LAMBDA_13B)
