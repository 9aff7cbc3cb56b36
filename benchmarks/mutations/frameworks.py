"""Logs of runs: those of the frameworks, and our own step logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.mutations.forms import TEXT
from benchmarks.mutations.judging import Files, Judge, Runs
from benchmarks.mutations.subjects import Subject, data, published, recipe, runs, sample, with_bare
from tests.support.events import scalars
from tests.support.gpu_logs import samples, told, write_rank
from tests.unit.engines.logs.true_logs import TORCHTITAN_CPU

_MEGATRON = re.compile(rb"iteration +\d+/|using world size|\[after training is done\]")
_METASEQ = re.compile(rb"train_inner|done training|training on|num_updates: |overflow detected")
_TITAN = re.compile(rb"step: |device mesh|local batch size|Training completed|total parameters|Applied ")
_NEMO = re.compile(rb"Training epoch|max_steps=|Starting with \d+ processes")
_CHAT = re.compile(rb"Throughput: |Execution time|dist_world_size|Beginning of Epoch|epoch=\d|exits successfully")
_MLPERF = re.compile(rb'"(?:block|run|eval)_st|"train_|"throughput"|eval_acc|batch_size|accumulation')
_TIME = re.compile(rb"\d+user |_TRAINING:")
_EVENTS = "events.out.tfevents.1700000000.host.1.0"
_SMALL = {"sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2}
# 17,888 parameters.
_ONE_LAYER = {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128}


def megatron_lm() -> Iterator[Subject]:
    """Megatron-LM's log: our own small runs, one H200, and JSC's, which is meant to end at its time limit."""
    proof = rb"\[after training is done\] datetime:"
    small = runs(recipe("small", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}))
    yield from _whole("2 CPU ranks", data("logs/megatron_lm_2_ranks.log"), small, _MEGATRON, proof)
    four = runs(recipe("small", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}), ranks=4)
    yield from _whole("4 CPU ranks", data("logs/megatron_lm_4_ranks.log"), four, _MEGATRON, proof)
    old = [re.sub(rb"\[20\d\d-[^\]]*\] (?=iteration)|throughput per GPU[^|]*\| ", b"", line)
           for line in TEXT.split(data("logs/megatron_lm_2_ranks.log")["megatron_lm_2_ranks.log"])]  # fmt: skip
    beside = re.compile(rb"(\[[^\]]*\] iteration .*?iteration \(ms\): ([\d.]+).*)")
    text = data("logs/megatron_lm_2_ranks.log")["megatron_lm_2_ranks.log"]
    bridge = {"job.log": beside.sub(_with_step_time, text)}
    small = runs(recipe("small", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}))
    yield from _whole("2 CPU ranks, as of Megatron-Bridge", bridge, small, _MEGATRON, proof)
    then = runs(recipe("then", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}))
    yield from _whole("2 CPU ranks, as in 2021", {"job.log": b"".join(old)}, then, _MEGATRON, proof)
    model = {"layers": 12, "hidden_size": 768, "attention_heads": 12, "vocab_size": 50304}
    gpt = recipe(
        "gpt125m", "megatron_lm", model=model, sequence_length=2048, global_batch_size=32, micro_batch_size=8,
        gpus_per_node=1, precision="bf16", steps=40,
    )  # fmt: skip
    one = runs(gpt, "H200", gpus=1)
    yield from _whole("one H200", _sampled("logs/megatron_lm_one_h200.log"), one, _MEGATRON, proof)
    plain = {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128, "dropout": 0.0}
    tiny = runs(recipe("tiny", "megatron_lm", **_SMALL, steps=20, model=plain, parallelism={"tensor": 2}))
    yield from _whole("2 CPU ranks, core 0.16", _sampled("logs/megatron_lm_core_0.16.log"), tiny, _MEGATRON, proof)
    if files := _sampled("jsc/175B_job.out.excerpt.txt"):
        jsc, shape = published()["nlp175b"], {"nodes": 96, "gpus": 4}
        cut_off = runs(jsc, "JUWELS_Booster", **shape, cut_off="ended at its time limit, as its owner says")
        yield Subject(name="JSC's 175B, cut off", files=files, judge=cut_off, telling=_MEGATRON)
        unended = runs(jsc, "JUWELS_Booster", **shape)
        yield Subject(
            name="JSC's 175B, unended", files=files, judge=unended, telling=_MEGATRON, proves=_line(proof)
        )  # fmt: skip


def megatron_events() -> Iterator[Subject]:
    """Megatron-LM's event file, written here as it writes it: beside its log, and where the log has no step."""
    proof = rb"\[after training is done\] datetime:"
    log = data("logs/megatron_lm_2_ranks.log")["megatron_lm_2_ranks.log"]
    judge = runs(recipe("small", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}))
    steps = judge.record({"job.log": log}).steps
    rows = [(step.step, tag, value) for step in steps for tag, value in (
        ("batch-size", float(step.samples or 0)), ("lm loss", step.loss or 0.0), ("grad-norm", step.grad_norm or 0.0),
        ("iteration-time", step.seconds or 0.0))]  # fmt: skip
    events = {_EVENTS: b"".join(scalars(rows))}
    yield from _whole("beside the log", {"job.log": log, **events}, judge, _MEGATRON, proof)
    alone = b"".join(line for line in log.splitlines(keepends=True) if b"] iteration " not in line)
    judge = runs(recipe("small", "megatron_lm", **_SMALL, steps=30, parallelism={"tensor": 2}))
    yield Subject(
        name="without a step in the log", files={"job.log": alone, **events}, judge=judge, telling=_MEGATRON,
        proves=_line(proof), targets=(_EVENTS,),
    )  # fmt: skip


def metaseq() -> Iterator[Subject]:
    """The log of metaseq: our own small runs."""
    proof = rb"\| done training in \d"
    ours = recipe(
        "opt", "metaseq", sequence_length=128, global_batch_size=2, micro_batch_size=1, steps=50,
        options={"model_size": "125m"},
    )  # fmt: skip
    yield from _whole("2 CPU ranks", data("logs/metaseq_2_ranks.log"), runs(ours), _METASEQ, proof)
    other = recipe(
        "opt20", "metaseq", sequence_length=64, global_batch_size=8, micro_batch_size=4, steps=20,
        model={"layers": 2, "hidden_size": 64, "attention_heads": 2, "vocab_size": 508},
        options={"model_size": "tiny", "arguments": {"decoder-ffn-embed-dim": 128}},
    )  # fmt: skip
    yield from _whole("2 CPU ranks, 20 updates", _sampled("logs/metaseq_20_updates.log"), runs(other), _METASEQ, proof)


def torchtitan() -> Iterator[Subject]:
    """The log of torchtitan: our own small run."""
    ours = runs(recipe("titan", "torchtitan", **TORCHTITAN_CPU.recipe))
    yield from _whole("2 CPU ranks", data(TORCHTITAN_CPU.name), ours, _TITAN, rb"Training completed")


def mlperf() -> Iterator[Subject]:
    """MLPerf's logs: one with blocks alone, and one with a line for every ten steps."""
    proof = rb'"status": "success"'
    blocks = runs(published()["mlperf_llama31_8b_mi"], gpus=8)
    yield from _whole("8 MI355X", data("logs/mlperf_llama31_8b_mi355x.txt"), blocks, _MLPERF, proof)
    tuned = recipe(
        "lora", "mlperf", gpus_per_node=8, sequence_length=8192, global_batch_size=8, micro_batch_size=1,
        parallelism={"context": 2}, precision="fp8", steps=1024, end="target",
        options={"benchmark": "llama2_70b_lora", "target": 0.925},
    )  # fmt: skip
    lines = runs(tuned, gpus=8)
    yield from _whole("LoRA on 8 B200", data("logs/mlperf_llama2_70b_lora_b200.txt"), lines, _MLPERF, proof)


def nemo() -> Iterator[Subject]:
    """NeMo 2's lines, without its event file."""
    yield from _whole("2 CPU ranks", data("nemo/output.log"), _nemo_runs(40), _NEMO, _STOPPED)


def nemo_events() -> Iterator[Subject]:
    """NeMo's event file, beside its log, which is not damaged."""
    events = "events.out.tfevents.1795252130.vm.28789.0"
    files = data("nemo/output.log", f"nemo/{events}")
    yield Subject(
        name="2 CPU ranks", files=files, judge=_nemo_runs(40), telling=_NEMO, proves=_line(_STOPPED), targets=(events,)
    )  # fmt: skip


def gnu_time() -> Iterator[Subject]:
    """The lines of GNU time and of `date` around a run of NeMo."""
    files = data("nemo/output.log")
    spent = b"96.41user 13.30system 1:01.52elapsed 178%CPU (0avgtext+0avgdata 927828maxresident)k\n"
    head, begin, tail = files["output.log"].rpartition(b"END_TRAINING")
    files["output.log"] = head + spent + begin + tail
    yield from _whole("2 CPU ranks", files, _nemo_runs(40), _TIME, _STOPPED)


def deepspeed_chat() -> Iterator[Subject]:
    """Lambda's logs; upstream's own, which say no throughput of the whole run, are errors."""
    for name, judge in _lambda():
        yield from _whole(name, _sampled(f"lambda/{name}_1_1xN_batch0001.log"), judge, _CHAT, _THROUGHPUT)
    for step, chat in ((1, "chat_350m_bs24_zero0"), (2, "chat_350m_rm"), (3, "chat_350m_bs24_zero0")):
        if files := _sampled(f"logs/deepspeed_chat_step{step}.log"):
            yield Subject(
                name=f"upstream's step {step}", files=files, judge=runs(published()[chat]), telling=_CHAT,
                proves=_line(_THROUGHPUT),
            )  # fmt: skip


def eval_batch() -> Iterator[Subject]:
    """The row of Lambda's evaluator, beside the verdict with which it is shown."""
    for name, judge in _lambda():
        files = _sampled(f"lambda/{name}_1_1xN_batch0001.log")
        yield from _whole(name, files, judge.evaluated, _CHAT, _THROUGHPUT)


def step_log() -> Iterator[Subject]:
    """Our own step logs."""
    files = {f"steps/{name}": text for name, text in data("steps/steps/rank-00000.jsonl",
                                                          "steps/steps/rank-00001.jsonl").items()}  # fmt: skip
    judge = runs(recipe("tiny", "torch", **_SMALL, steps=20, model=_ONE_LAYER))
    yield from _ranks("2 CPU ranks", files, judge)


def telemetry() -> Iterator[Subject]:
    """What two GPUs did, in step logs that are written here as ranks write them."""
    with TemporaryDirectory() as folder:
        for rank in range(2):
            write_rank(Path(folder), rank, 20, [told(rank), *samples(20.5)], parameters=17_888)
        files = {f"steps/{path.name}": path.read_bytes() for path in sorted(Path(folder, "steps").iterdir())}
    judge = runs(recipe("watched", "torch", **_SMALL, steps=20, gpus_per_node=2, model=_ONE_LAYER), "H200", gpus=2)
    yield from _ranks("2 GPUs", files, judge, re.compile(rb'"(?:gpu|telemetry|step)"'))


_STOPPED = rb"`Trainer\.fit` stopped: `max_steps=\d+` reached\."
_THROUGHPUT = rb"Throughput: \d+\.\d+ samples/sec"


def _with_step_time(match: re.Match[bytes]) -> bytes:
    """A step of Megatron-LM with the line that rank 0 of Megatron-Bridge prints beside it."""
    seconds = float(match[2]) / 1000
    return f"Step Time : {seconds:.2f}s GPU utilization: {0.1 / seconds:.1f}MODEL_TFLOP/s/GPU\n".encode() + match[1]


def _nemo_runs(steps: int) -> Runs:
    return runs(recipe("nemo", "nemo_torchrun", **_SMALL, steps=steps, parallelism={"tensor": 2}))


def _lambda() -> Iterator[tuple[str, Runs]]:
    for name, of in (("opt-350m", "chat_350m_bs24_zero0"), ("opt-13b", "chat_13b_bs16_zero0")):
        yield name, runs(published()[of], "Lambda_8xH100", gpus=8)


def _whole(
    name: str, files: dict[str, bytes] | None, judge: Judge, telling: re.Pattern[bytes], proof: bytes
) -> Iterator[Subject]:
    if files is not None:
        whole = Subject(name=name, files=files, judge=judge, telling=telling, proves=_line(proof))
        yield from with_bare(whole, proof)


def _ranks(
    name: str, files: dict[str, bytes], judge: Judge, telling: re.Pattern[bytes] = re.compile(rb".")
) -> Iterator[Subject]:
    """Step logs, of which each rank's has to say that it ended."""
    proof = rb'"event"\s*:\s*"end"'  # between its words JSON may have blanks
    whole = Subject(
        name=name, files=files, judge=judge, telling=telling,
        proves=lambda left: all(re.search(proof, text) for text in left.values()),
    )  # fmt: skip
    yield from with_bare(whole, proof)


def _sampled(name: str) -> dict[str, bytes] | None:
    text = sample(name)
    return None if text is None else {"job.log": text}


def _line(proof: bytes) -> Callable[[Files], bool]:
    return lambda files: any(re.search(proof, text) for text in files.values())
