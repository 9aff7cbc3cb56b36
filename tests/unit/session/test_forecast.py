"""What a plan says of a run before it: its memory, its time, and what will judge it, against hand and machine."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.recipes import RECIPES
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System, load_system
from pytest_llmbench.core.gpus import same_gpu
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.memory import GIB, memory_of
from pytest_llmbench.session.forecast import (
    contradictions,
    doubts,
    laid_out,
    memory,
    numbers,
    outlook_of_check,
    refusals,
)
from tests.conftest import known
from tests.support.recipes import small_recipe

SHIPPED = load_recipes(RECIPES.usable().values())
H100, GB200 = "p5.48xlarge", "a4x-highgpu-4g"


def settings(system: System | str, **how: Any) -> Settings:
    found = system if isinstance(system, System) else load_system(system, [shipped("systems")])
    return Settings(system=found, cluster="slurm", allocation="run", run_dir=Path("reports"), **how)


def foreseen(recipe: Recipe, where: Settings) -> tuple[str, str, str]:
    """What cannot be, what is doubtful, and the numbers; a recipe has its batch by then."""
    recipe = recipe.on(where.topology(recipe))
    return tuple("\n".join(of(recipe, where)) for of in (refusals, doubts, numbers))  # type: ignore[return-value]


@pytest.mark.parametrize(("system", "nodes", "cannot", "doubt"), [
    (H100, 1, "take 325 GiB of each GPU on 1 node × 8 GPUs, and H100 80GB HBM3 has 80 GiB: it fits on 8", ""),
    (H100, 2, "take 163 GiB of each GPU on 2 nodes × 8 GPUs, and H100 80GB HBM3 has 80 GiB: it fits on 8", ""),
    (H100, 8, "", ""), (H100, 128, "", ""),
    (GB200, 4, "", "about 189 GiB of each GPU's 186 GiB are expected to be in use, more than 90 %"),
    (GB200, 16, "", ""), (GB200, 18, "", ""),
])  # fmt: skip
def test_175b_is_worked_out_by_hand(system: str, nodes: int, cannot: str, doubt: str) -> None:
    """50 steps of 1024 sequences of 2048 tokens, one in a micro batch, with all state split over all GPUs."""
    h, layers, length, vocabulary = 12288, 96, 2048, 51196
    gpus, tflops = (8 * nodes, 989.4) if system == H100 else (4 * nodes, 2500.0)
    # 12 h² + 13 h of a layer, the tied embedding, the positions, the last norm: 174,615,797,760.
    layer = 12 * h**2 + 13 * h
    parameters = vocabulary * h + length * h + layers * layer + 2 * h
    # 4 bytes each of a weight, its gradient and two moments, on one of all GPUs.
    state = 16 * parameters / gpus
    # Each layer keeps its 16-bit input. One is recomputed: 24 bytes and two of dropout's masks a token and unit. One is
    # gathered (2 bytes, and the next one), with its gradient (2) while that is averaged in fp32 (4). That of the
    # embedding is fp32. 2 GiB are not tensors.
    kept, working = layers * length * h * 2, 26 * length * h
    estimate = state + kept + working + 10 * layer + 4 * vocabulary * h + 2 * GIB
    # 6 for each parameter that multiplies, 12 for attention (PaLM, appendix B); 50 × 1024 × 2048 = 104,857,600 tokens.
    flops = 6 * (parameters - length * h) + 12 * layers * h * length
    minutes = 104_857_600 * flops / (gpus * tflops * 1e12) / 60
    where = settings(system, nodes=nodes)
    refused, doubted, said = foreseen(SHIPPED["opt175b"], where)
    assert cannot in refused
    assert bool(refused) == bool(cannot)
    assert doubt in doubted
    assert bool(doubt) == ("memory" in doubted)
    assert f"time: {minutes:.3g} min at the published peak; {minutes / 0.4:.3g} min, or " in said
    assert f"{gpus * minutes / 0.4 / 60:.3g} GPU-hours, are expected at 40 % of it" in said
    assert (
        f"memory of each GPU: {state / GIB:.1f} GiB of weights, gradients and optimizer, about {estimate / GIB:.0f} GiB"
        in said
    )
    hours = {1: 594, 2: 297, 8: 74.3, 128: 4.64} if system == H100 else {4: 118, 16: 29.4, 18: 26.1}
    assert minutes / 0.4 == pytest.approx(hours[nodes], rel=0.01)


def test_activations_of_several_times_the_memory_are_refused() -> None:
    """But not of a program that recomputes by itself."""
    layout = SHIPPED["opt1.3b"].parallelism.model_copy(update={"activation_checkpointing": "none"})
    changed = {"global_batch_size": 512, "parallelism": layout}
    ours = [SHIPPED["opt1.3b"].model_copy(update={**changed, "micro_batch_size": micro}) for micro in (64, 4)]
    for recipe, nodes, refused, doubtful in (
        (ours[0], 1, True, False),
        (ours[1], 1, False, False),
        (SHIPPED["metaseq175b"], 8, False, True),
    ):
        found, doubted, _ = foreseen(recipe, settings(H100, nodes=nodes))
        assert ("GiB of each GPU's 80 GiB are expected to be in use" in found) is bool(found) is refused
        assert ("it may run out of memory" in doubted) is doubtful


def test_without_a_gpu_its_size_is_said_its_time_is_unknown_and_the_choice_left_to_the_ranks() -> None:
    refused, doubted, said = foreseen(SHIPPED["opt175b"], settings(System(name="slurm", cluster="slurm"), nodes=1))
    assert (refused, doubted) == ("", "")
    assert "memory of each GPU: 325.2 GiB of weights, gradients and optimizer, about 352 GiB with" in said
    assert said.endswith("\nunknown: its time: system slurm names no gpu")
    said = foreseen(SHIPPED["opt13b"], settings(System(name="slurm", cluster="slurm"), nodes=1))[2]
    assert "recomputed: none, 2 sequences in each micro batch; decided on the GPUs, by their memory" in said


def test_a_rack_of_72_is_told_the_nearest_numbers_of_nodes() -> None:
    """1024 sequences on 72 GPUs: no number of micro batches."""
    recipe, topology = SHIPPED["opt175b"], Topology(nodes=18, gpus_per_node=4)
    (problem,) = get_engine("torch").problems(recipe.on(topology), topology)
    assert problem.endswith("1024 ranks: give --nodes 16 or --nodes 32")


FULL = {"sharding": "full", "activation_checkpointing": "full"}


# GB that torch had allocated at most: docs/measurements, memory of trainings on H200; and bytes of its other records.
@pytest.mark.parametrize(("engine", "gpus", "shape", "micro", "batch", "layout", "dropout", "measured"), [
    ("torch", 2, (8, 5120, 40), 2, 16, FULL, 0.1, 27.28),
    ("torch", 2, (4, 8192, 64), 1, 16, FULL, 0.1, 39.43),
    ("torch", 2, (2, 12288, 96), 1, 4, FULL, 0.1, 51.76),
    ("torch", 2, (16, 4096, 32), 2, 8, {"sharding": "full"}, 0.1, 37.62),
    ("torch", 2, (32, 2560, 32), 4, 64, FULL, 0.1, 25.28),
    ("torch", 2, (24, 2048, 32), 8, 64, {"sharding": "gradients"}, 0.1, 38.96),
    ("torch", 2, (24, 2048, 32), 4, 32, {}, 0.1, 42.93),
    ("torch", 2, (12, 768, 12), 16, 128, {}, 0.1, 13.51),
    ("torch", 1, (24, 2048, 32), 8, 8, {}, 0.0, 39.77),
    ("torch", 1, (12, 768, 12), 32, 32, {}, 0.0, 16.4 * GIB / 1e9),
    ("megatron_core", 1, (24, 2048, 32), 8, 8, {}, 0.0, 44.9 * GIB / 1e9),
    ("megatron_core", 1, (12, 768, 12), 32, 32, {}, 0.0, 34.3 * GIB / 1e9),
    ("megatron_core", 4, (40, 5120, 40), 1, 8, {"tensor": 4, "sequence": True}, 0.0, 59 * GIB / 1e9),
])  # fmt: skip
def test_what_was_measured_is_foreseen(
    engine: str, gpus: int, shape: tuple[int, int, int], micro: int, batch: int, layout: Any, dropout: float,
    measured: float,
) -> None:  # fmt: skip
    """The least is never above it, since it refuses; the estimate is near it, since it warns."""
    layers, hidden, heads = shape
    model = {"layers": layers, "hidden_size": hidden, "attention_heads": heads, "vocab_size": 51196, "dropout": dropout}
    recipe = small_recipe(
        {"engine": engine, "model": model, "micro_batch_size": micro, "global_batch_size": batch, "parallelism": layout,
         "sequence_length": 2048}
    )  # fmt: skip
    topology = Topology(nodes=1, gpus_per_node=gpus)
    footprint = known(get_engine(engine).footprint(recipe, topology))
    needed = memory_of(recipe, topology, footprint)
    assert needed.least <= measured * 1e9
    assert 0.94 <= (needed.estimate - 2 * GIB) / (measured * 1e9) <= 1.11


def test_the_memory_of_a_large_vocabulary_and_a_gated_layer_is_near_the_measured_one() -> None:
    """Llama 3.1 8B took 106.7 GiB of each of four H200, with 2 sequences at a time."""
    topology = Topology(nodes=1, gpus_per_node=4)
    needed = memory(SHIPPED["llama31_8b"].on(topology), topology, settings("H200", nodes=1).system.gpu)
    assert needed is not None
    assert 0.94 <= (needed.estimate - 2 * GIB) / (106.7 * GIB) <= 1.11


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_memory_of_experts_is_that_of_all_of_them_and_of_a_copy_of_each_token_for_each(gpus: int) -> None:
    """8 layers of Qwen3 30B-A3B: 128 experts of 3 · 2048 · 768, and 4 sequences of 4096 tokens, each in 8 experts."""
    expert, attention = 3 * 2048 * 768, 2048 * 128 * (32 + 2 * 4 + 32)
    layer, tables = 128 * (expert + 2048) + attention + 2 * 2048 + 2 * 128, 2 * 151936 * 2048
    # One GPU keeps 16-bit copies of weights over micro batches. In 16 bits, a layer keeps of each token 4 vectors at
    # two norms, queries, keys, values and mixed values, and for each of its experts the input, gate, inner value and
    # their product.
    state = (8 * layer + tables + 2048) * (18 if gpus == 1 else 16 / gpus)
    token = 2 * (4 * 2048 + 2 * 128 * (32 + 4) + 8 * (2048 + 3 * 768))
    topology, h200 = Topology(nodes=1, gpus_per_node=gpus), settings("H200", nodes=1).system.gpu
    needed = known(memory(SHIPPED["qwen3_30b_a3b_slice"].on(topology), topology, h200))
    assert needed.estimate - 2 * GIB == pytest.approx(state + 8 * 4 * 4096 * token, rel=0.15)


@pytest.mark.parametrize(("name", "system", "gpus", "chosen"), [
    ("qwen3_30b_a3b_slice", "H200", 1, "none, 4"),
    ("llama31_70b_slice", "H200", 1, "none, 2"),
    ("llama31_70b_slice_tp2", "H200", 2, "none, 2"),
    ("opt13b", H100, 4, "full, 2"),  # 49 GiB of state, and 20 GiB of activations of two sequences: more than 72
    ("opt13b", H100, 8, "none, 4"),
    ("opt13b", "H200", 4, "none, 4"),
    ("opt13b", "H200", 8, "none, 8"),  # 16,384 tokens: no more are joined
    ("llama31_8b", H100, 4, "full, 1"),
    ("llama31_8b", H100, 8, "none, 1"),
    ("llama31_8b", "H200", 8, "none, 2"),
    ("llama31_8b", "H200", 1, "full, 1"),
])  # fmt: skip
def test_nothing_is_recomputed_that_fits(name: str, system: str, gpus: int, chosen: str) -> None:
    """The plan has what ranks choose by the memory of their GPUs; the batch of a step stays."""
    where = settings(system, nodes=1, gpus_per_node=gpus)
    refused, doubted, said = foreseen(SHIPPED[name], where)
    assert f"recomputed: {chosen} sequence{'' if chosen[-1] == '1' else 's'} in each micro batch" in said.splitlines()
    if chosen.startswith("none"):
        assert (refused, "GiB" in doubted) == ("", False)
    topology = where.topology(SHIPPED[name])
    recipe, gpu = SHIPPED[name].on(topology), where.system.gpu
    assert gpu is not None
    resolved = laid_out(recipe, topology, gpu)
    assert resolved.samples_per_step == recipe.samples_per_step
    assert recipe.samples_per_step % (gpus * resolved.micro_batch_size) == 0
    assert memory(resolved, topology, gpu) == memory(recipe, topology, gpu)


@pytest.mark.parametrize("system", [H100, "H200", "ND96amsr_A100_v4", "JUWELS_Booster"])
def test_every_shipped_recipe_may_run_where_it_was_published(system: str) -> None:
    """JSC's are for 40 GB, those of today's models for the GPU of their reference, the others for 80 GB."""
    where = settings(system)
    gpu = known(where.system.gpu)
    chosen = []
    for name, recipe in SHIPPED.items():
        of_jsc = name.startswith("nlp")
        named = [
            each.applies_to.gpu for each in recipe.references if each.applies_to is not None and each.applies_to.gpu
        ]
        if recipe.engine in {"megatron_lm", "mlperf", "torchtitan"} and not of_jsc:
            chosen += [recipe] if any(same_gpu(model, gpu.model) for model in named) else []
        elif of_jsc or system != "JUWELS_Booster":
            chosen.append(recipe)
    said = {recipe.name: foreseen(recipe, where)[:2] for recipe in chosen}
    assert {name for name, (refused, _) in said.items() if refused} <= {
        name
        for name, recipe in SHIPPED.items()
        if recipe.engine == "mlperf"  # these read logs alone
    }
    # The estimate counts activations in 16 bits, and some keep some in 8: it has 81 GiB of 80. torchtitan's had 96 GB.
    # Slices are for 141 GiB.
    tight = {"qwen3_30b_a3b_slice", "llama31_70b_slice", "llama31_70b_slice_tp2"}
    tight |= {"llama31_70b_fp8_h100", "llama31_405b_fp8_h100", "titan_llama31_8b", "titan_llama31_8b_float8"}
    doubted = {name for name, (_, words) in said.items() if "GiB" in words and SHIPPED[name].engine != "mlperf"}
    assert doubted <= tight


@pytest.mark.parametrize(("minutes", "changes", "cannot", "doubt"), [
    (29, {}, "its 50 steps take at least 29.3 min at the published peak of 64 × H100", ""),
    (30, {}, "", "it is expected to take 74.3 min, and its time limit is 30 min: give --time 93"), (75, {}, "", ""),
    (1, {"end": "time_limit"}, "", ""), (1, {"scale": "smoke"}, "", ""),
])  # fmt: skip
def test_a_limit_is_held_against_the_peak(minutes: int, changes: Any, cannot: str, doubt: str) -> None:
    recipe = SHIPPED["opt175b"].model_copy(update=changes)
    refused, doubted, _ = foreseen(recipe, settings(H100, nodes=8, time_min=minutes))
    assert (cannot in refused, doubt in doubted) == (True, True)
    assert (bool(refused), bool(doubted)) == (bool(cannot), bool(doubt))


@pytest.mark.parametrize(("system", "nodes", "tensor", "warns"), [
    (H100, 2, 16, True), (H100, 2, 8, False), (H100, 2, 3, True), (H100, 1, 3, False), (GB200, 2, 8, False),
])  # fmt: skip
def test_tensor_parallelism_over_the_network_is_a_warning(system: str, nodes: int, tensor: int, *, warns: bool) -> None:
    """But for racks, whose nodes NVLink joins."""
    recipe = small_recipe({"engine": "megatron_core", "parallelism": {"tensor": tensor}})
    said = foreseen(recipe, settings(system, nodes=nodes))[1]
    assert (f"tensor {tensor} spreads each matrix over several nodes" in said) == warns


GPU = {"model": "H100", "memory_gib": 80, "peak_tflops": {"bf16": 989.4}, "source": "data sheet"}


def bound(**machine: str) -> list[dict[str, Any]]:
    return [
        {"name": "b", "statistic": "throughput", "at_least": "1 words/s", "why": "w", "source": "s",
         "date": "2026-01-01", "applies_to": machine}
    ]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), [
    ({}, ""),
    ({"gpu": {"peak_tflops": {"bf16": 1978.9}}}, "bf16: 1978.9 is 2 times what is published of H100 (dense)"),
    ({"gpu": {"peak_tflops": {"bf16": 98.94}}}, "98.94 is 0.1 times"),
    ({"gpu": {"memory_gib": 800}}, "memory_gib: 800 is 8.51 times"),
    ({"gpu": {"model": "Unknown 1"}}, ""),
    ({"references": {"r": bound(gpu="H100")}}, ""),
    ({"references": {"r": bound(gpu="H100 80GB HBM3")}}, ""),
    ({"references": {"r": bound(gpu="H200")}},
     "references: r: b is for H200, at best a floor on other GPUs: this is system x with H100"),
    ({"references": {"r": bound(system="other")}}, "b is for system other, and never applies"),
    ({"validation": {"gemm": {"references": bound(gpu="A100")}}}, "validation: gemm: b is for A100, and never applies"),
])  # fmt: skip
def test_a_system_that_contradicts_itself_is_named(changes: Any, words: str) -> None:
    said = "\n".join(
        contradictions(validate(System, merge({"name": "x", "cluster": "slurm", "gpu": GPU}, changes), "x"))
    )
    assert words in said
    assert bool(said) == bool(words)


def test_no_shipped_system_contradicts_itself() -> None:
    for path in shipped("systems").glob("*.yaml"):
        assert list(contradictions(load_system(str(path), []))) == []


@pytest.mark.parametrize(("name", "nodes", "estimate"), [("metaseq125m", 1, 32), ("metaseq175b", 128, 55)])
def test_metaseq_keeps_all_weights_and_all_sequences_of_a_copy(name: str, nodes: int, estimate: int) -> None:
    """By hand for 175B: 21.8 G parameters of a rank take 2 bytes each, and 16 more are split over 128 copies."""
    recipe, where = SHIPPED[name], settings("ND96amsr_A100_v4", nodes=nodes)
    needed = known(memory(recipe, where.topology(recipe)))
    assert needed.estimate / GIB == pytest.approx(estimate, abs=0.5)
    if name == "metaseq175b":
        assert needed.state == pytest.approx(174.6e9 / 8 * (2 + 16 / 128), rel=0.01)
        tokens, h = 8 * 2048, 12288  # 1024 sequences on 128 copies
        kept, layer = 96 * 2 * tokens * h / 8, tokens * ((10 + 24 / 8) * h + 5 * 2048 * 96 / 8)
        assert needed.rest == pytest.approx(kept + layer + 6 * tokens * 51200 / 8 + 2 * GIB, rel=0.01)
    half = settings("ND96amsr_A100_v4", nodes=max(1, nodes // 4))
    assert ("GiB" in foreseen(recipe, half)[1]) is (nodes > 1)


def judges(name: str, statistic: str, at_least: str, **machine: Any) -> dict[str, Any]:
    applies = {"gpu": "H100", **machine}
    return {"name": name, "statistic": statistic, "at_least": at_least, "why": "-", "source": "-", "date": "2026-11-26",
            "applies_to": applies}  # fmt: skip


JUDGED = {
    "all_reduce": [judges("node", "busbw_8GiB", "440 GB/s", gpus=8, nodes=1),
                   judges("pair", "busbw_8GiB", "430 GB/s", gpus=16, nodes=2) | {"floor": True}],
    "pairs": [judges("pair", "pair_busbw", "430 GB/s", gpus=16, nodes=2)],
    "host_device_bandwidth": [judges("copy", "host_to_device", "52 GB/s")],
}  # fmt: skip
PHYSICS, ELSE = "physics, where the nodes show what their hardware is", "not for this machine"
NODE, PAIR = "node (busbw_8GiB >= 440 GB/s)", "pair (busbw_8GiB >= 430 GB/s) (a floor)"


@pytest.mark.parametrize(("check", "nodes", "how", "said"), [
    ("all_reduce", 1, {}, f"judged: {NODE}; {PHYSICS}\n{ELSE} (1 node × 8 GPUs, scale full): pair (for"),
    ("all_reduce", 2, {}, f"judged: {PAIR}; {PHYSICS}\n{ELSE} (2 nodes × 8 GPUs, scale full): node (for"),
    ("all_reduce", 16, {}, f"judged: {PHYSICS}\n{ELSE} (16 nodes × 8 GPUs, scale full): node"),
    ("pairs", 16, {}, f"judged: pair (pair_busbw >= 430 GB/s); {PHYSICS}"),
    ("pairs", 16, {"scale": "smoke"}, "judged: by nothing: a PASS will show that it works, not how fast\nnot for"),
    ("gemm", 1, {"gpus_per_node": 0}, "judged: by nothing"),
    ("host_device_bandwidth", 1, {}, f"judged: copy (host_to_device >= 52 GB/s); {PHYSICS}"),
    ("limits", 1, {}, ""),
])  # fmt: skip
def test_a_plan_says_what_judges_a_check(check: str, nodes: int, how: Any, said: str) -> None:
    bounds = {name: {"references": references} for name, references in JUDGED.items()}
    facts = {"name": "x", "cluster": "slurm", "gpus_per_node": 8, "gpu": GPU, "validation": bounds}
    lines = "\n".join(outlook_of_check(check, settings(validate(System, facts, "x"), nodes=nodes, **how)))
    assert lines.startswith(said) if said else not lines


def test_a_check_that_is_left_out_says_why() -> None:
    system = validate(System, {"name": "x", "cluster": "slurm", "validation": {"limits": {"skip": "ours"}}}, "x")
    assert list(outlook_of_check("limits", settings(system))) == ["left out: ours"]
