"""A framework's log that says it trained something else than the recipe is not judged, wherever it says so."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_llmbench.readers import megatron_claims
from tests.conftest import known
from tests.support.samples import readable

from .true_logs import LAMBDA_13B, LAMBDA_350M, MEGATRON_CPU, MEGATRON_H200, METASEQ_CPU, NEMO_2, TRUE_LOGS, TrueLog

LOGS = Path(__file__).parents[3] / "data" / "logs"
HEAD = "using world size: 2, data-parallel size: 1, context-parallel size: 1, tensor-model-parallel size: 2, "
ARGUMENTS = {
    "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4, "seq_length": 32,
    "global_batch_size": 8, "micro_batch_size": 2, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1, "world_size": 2, "train_iters": 30, "params_dtype": "torch.float32",
    "sequence_parallel": False, "use_distributed_optimizer": False, "recompute_granularity": None,
    "group_query_attention": False, "num_query_groups": 1, "swiglu": False, "num_experts": None, "optimizer": "adam",
    "position_embedding_type": "learned_absolute", "fp8": None, "hidden_dropout": 0.1, "attention_dropout": 0.1,
    "accumulate_allreduce_grads_in_fp32": False, "load": None, "lr": 0.001,
}  # fmt: skip
OURS = TrueLog(
    name="", engine="megatron_lm", ranks=2, gpu=False,
    recipe={
        "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128},
        "parallelism": {"tensor": 2}, "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2,
        "precision": "fp32", "steps": 30,
    },
)  # fmt: skip


def ours(arguments: Mapping[str, object] | None = None, counts: Mapping[str, int] | None = None, more: str = "") -> str:
    """A log of our own, behind the arguments and counts that Megatron-LM prints before the first step, and `more`."""
    said = {"micro_batches": 4, "vocabulary": 128, "parameters": 60736, **(counts or {})}
    printed = "".join(
        f"[default0]:  {name} {'.' * (48 - len(name))} {value}\n"
        for name, value in {**ARGUMENTS, **(arguments or {})}.items()
    )
    middle = (
        f"[default0]:INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to constant "
        f"{said['micro_batches']}\n"
        f"[default0]: > padded vocab (size: {said['vocabulary']}) with 128 dummy tokens (new size: 256)\n"
        f"[default0]: > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 60736\n"
        f"[default1]: > number of parameters on (tensor, pipeline) model parallel rank (1, 0): {said['parameters']}\n"
        f"[default0]:{more}\n"
    )
    head, line_end, rest = (LOGS / "megatron_lm_2_ranks.log").read_text().partition("\n")
    return head + line_end + printed + middle + rest


@pytest.mark.parametrize(("argument", "value", "said"), [
    ("num_layers", 12, "layers 12"),
    ("hidden_size", 128, "hidden size 128"),
    ("ffn_hidden_size", 128, "feed forward size 128"),
    ("num_attention_heads", 8, "attention heads 8"),
    ("seq_length", 16, "sequence length 16"),
    ("global_batch_size", 4, "global batch size 4"),
    ("micro_batch_size", 1, "micro batch size 1"),
    ("tensor_model_parallel_size", 1, "tensor 1"),
    ("pipeline_model_parallel_size", 2, "pipeline 2"),
    ("context_parallel_size", 2, "context parallel 2"),
    ("world_size", 1, "world size 1"),
    ("train_iters", 29, "steps 29"),
    ("params_dtype", "torch.bfloat16", "precision bf16"),
    ("sequence_parallel", True, "sequence parallel on"),
    ("recompute_granularity", "full", "activation checkpointing full"),
    ("group_query_attention", True, "grouped queries on"),
    ("swiglu", True, "gated feed forward on"),
    ("num_experts", 8, "experts 8"),
    ("optimizer", "sgd", "optimizer sgd"),
    ("position_embedding_type", "rope", "positions rope"),
    ("hidden_dropout", 0.0, "dropout 0;"),
    ("attention_dropout", 0.25, "dropout 0.25;"),
    # These have no claim of their own.
    ("fp8", "hybrid", "fp8 hybrid"),
    ("load", "/checkpoints/base", "load /checkpoints/base"),
    ("finetune", True, "finetune True"),
    ("window_size", "(128, 0)", "window_size (128, 0)"),
    ("kv_channels", 32, "kv_channels 32"),
    ("mtp_num_layers", 1, "mtp_num_layers 1"),
    ("add_bias_linear", False, "add_bias_linear False"),
    ("main_grads_dtype", "torch.bfloat16", "main_grads_dtype torch.bfloat16"),
    ("rampup_batch_size", "['2', '2', '1000']", "rampup_batch_size ['2'"),
    ("num_layers_per_virtual_pipeline_stage", 1, "num_layers_per_virtual_pipeline_stage 1"),
    ("virtual_pipeline_model_parallel_size", 2, "virtual_pipeline_model_parallel_size 2"),
    ("moe_expert_capacity_factor", 1.0, "moe_expert_capacity_factor 1.0"),
    ("add_position_embedding", False, "add_position_embedding False"),
    ("clip_grad", 0.0, "clip_grad 0.0; optimizer.clip_grad_norm of the recipe is 1.0"),
])  # fmt: skip
def test_each_printed_argument_has_to_agree(tmp_path: Path, argument: str, value: object, said: str) -> None:
    problem = known(OURS.problem(tmp_path, ours({argument: value})))
    assert problem.kind == "wrong_work"
    assert said in problem.message
    assert re.match(r"job\.out:\d+ says ", problem.message)


@pytest.mark.parametrize(("said", "named"), [
    ({"micro_batches": 8}, "micro batches 8"),
    ({"vocabulary": 50257}, "vocab size 50257"),
    ({"parameters": 60736 - 25184}, "parameters of rank 35552"),  # a layer less, on the second rank alone
    ({"parameters": 60736 + 25184}, "parameters of rank 85920"),
    ({"parameters": 2 * 60736}, "parameters of rank 121472"),  # the matrices are not shared
])  # fmt: skip
def test_each_printed_count_has_to_agree(tmp_path: Path, said: dict[str, int], named: str) -> None:
    problem = known(OURS.problem(tmp_path, ours(counts=said)))
    assert (problem.kind, named in problem.message) == ("wrong_work", True), problem.message


def test_what_the_recipe_asks_for_beyond_its_fields_may_be_printed(tmp_path: Path) -> None:
    """Gated layers that the recipe's arguments ask for are those of the run; without them, they are not."""
    asked = {"options": {"arguments": {"swiglu": True, "group-query-attention": True, "num-query-groups": 2}}}
    printed = {"swiglu": True, "group_query_attention": True, "num_query_groups": 2, "ffn_hidden_size": 170}
    assert OURS.problem(tmp_path, ours(printed), **asked) is None
    assert OURS.problem(tmp_path, ours({**printed, "num_query_groups": 4}), **asked) is not None
    assert OURS.problem(tmp_path, ours(), **asked) is not None


@pytest.mark.parametrize(("more", "arguments", "kind"), [
    ("  successfully loaded checkpoint from /base [ t 1/2, p 1/1 ] at iteration 1000", {}, "wrong_work"),
    (" loading distributed checkpoint from /base at iteration 1000", {}, "wrong_work"),
    ("  successfully loaded checkpoint from /base [ t 1/2, p 1/1 ] at iteration 0", {"load": "/base"}, None),
    ("    will not load any checkpoints and will start from random", {}, None),
    ("Total number of parameters in billions: 1.31", {}, "wrong_work"),
    ("Total number of parameters in billions: 0.00", {}, None),
])  # fmt: skip
def test_lines_by_arguments_must_agree(tmp_path: Path, more: str, arguments: dict[str, str], kind: str | None) -> None:
    """A folder of checkpoints may be named that has none yet."""
    named = {"load": "/base"} if "random" in more or arguments else {}
    problem = OURS.problem(tmp_path, ours(named, more=more), options={"arguments": arguments})
    assert (problem.kind if problem else None) == kind, problem


@pytest.mark.parametrize("values", [(False, True), (True, False)])
def test_a_setting_of_several_values_has_to_agree_in_each(tmp_path: Path, values: tuple[bool, bool]) -> None:
    """An attempt that ended before its first step leaves its settings in the log of the next one."""
    more = "\n".join(f"  quick_geglu ..................................... {value}" for value in values)
    problem = known(OURS.problem(tmp_path, ours(more=more)))
    assert (problem.kind, "quick_geglu True" in problem.message) == ("wrong_work", True), problem.message


def test_settings_are_counted_as_far_as_they_are_not_compared(tmp_path: Path) -> None:
    """The numbers of the optimizer may differ, as the work of a step is the same; the sentence names them."""
    printed = {"lr": 0.002, "moe_z_loss_coeff": 0.1, "seed": 7, "swin_backbone": None}
    compared = OURS.evidence(tmp_path, ours(printed)).compared
    assert compared.differ == ()
    assert compared.summary == (
        "31 settings printed, 28 compared, 1 without effect on the work of a step, 1 not in use, "
        "1 unknown: moe_z_loss_coeff; unlike the recipe, with the same work: lr 0.002; optimizer.learning_rate of the "
        "recipe is 0.001"
    )


@pytest.mark.parametrize(
    ("log", "printed", "compared"),
    readable(((METASEQ_CPU, 167, 35), (LAMBDA_350M, 67, 12), (NEMO_2, 73, 9)), lambda case: case[0].name),
)
def test_settings_of_other_frameworks_are_counted(log: TrueLog, printed: int, compared: int, tmp_path: Path) -> None:
    summary = known(log.evidence(tmp_path, log.text()).compared.summary)
    assert re.fullmatch(rf"{printed} settings printed, {compared} compared, .*, \d+ unknown: .*", summary)


@pytest.mark.parametrize(("log", "printed", "changed"), readable(
    ((METASEQ_CPU, "'finetune_from_model': None", "'finetune_from_model': '/base.pt'"),
     (METASEQ_CPU, "'ewm_ratio_to_skip_batch': -1.0", "'ewm_ratio_to_skip_batch': 1.25"),
     (LAMBDA_350M, "pld_enabled .................. False", "pld_enabled .................. True"),
     (LAMBDA_350M, "curriculum_enabled_legacy .... False", "curriculum_enabled_legacy .... True")),
    lambda case: case[0].name,
))  # fmt: skip
def test_a_switch_that_leaves_work_out_is_other_work(log: TrueLog, printed: str, changed: str, tmp_path: Path) -> None:
    text = log.text()
    assert printed in text
    assert known(log.problem(tmp_path, text.replace(printed, changed))).kind == "wrong_work"


NEMO_1 = TrueLog(
    name="", engine="nemo_launcher", ranks=8,
    recipe={
        **NEMO_2.recipe, "precision": "bf16", "steps": 40, "parallelism": {"activation_checkpointing": "none"},
        "options": {"version": "22.06", "training": "gpt3/126m", "arguments": {"training.model.kv_channels": 64}},
    },
)  # fmt: skip
# As NeMo 1 prints it behind `Experiment configuration`, with its own indent and lists.
CONFIGURATION = """\
[NeMo I 2023-09-11 22:30:14 megatron_gpt_pretraining:35]
    name: megatron_gpt
    trainer:
      devices: 8
      num_nodes: 1
      precision: bf16
      max_time: 05:23:30:00
      max_steps: 40
      accumulate_grad_batches: 1
    exp_manager:
      name: megatron_gpt
    model:
      micro_batch_size: 1
      rampup_batch_size: null
      encoder_seq_length: 512
      max_position_embeddings: ${.encoder_seq_length}
      num_layers: 12
      ffn_hidden_size: ${multiply:4, ${.hidden_size}}
      kv_channels: 64
      hidden_dropout: 0.1
      moe_z_loss_coeff: 0.1
      optim:
        name: fused_adam
        lr: 0.0006
        betas:
        - 0.9
        - 0.95
"""


@pytest.mark.parametrize(("printed", "instead", "named"), [
    ("devices: 8", "devices: 4", "trainer.devices 4; topology"),
    ("num_layers: 12", "num_layers: 6", "model.num_layers 6; model.layers"),
    ("seq_length: 512", "seq_length: 256", "model.encoder_seq_length 256"),
    ("precision: bf16", "precision: '16-mixed'", "trainer.precision 16-mixed"),
    ("dropout: 0.1", "dropout: 0.0", "model.hidden_dropout 0.0"),
    ("name: fused_adam", "name: distributed_fused_adam", "model.optim.name distributed_fused_adam"),
    ("rampup_batch_size: null", "rampup_batch_size:\n      - 2\n      - 2", "model.rampup_batch_size 2"),
    ("batches: 1", "batches: 2", "trainer.accumulate_grad_batches 2"),
    ("kv_channels: 64", "kv_channels: 32", "model.kv_channels 32"),
    *(
        ("kv_channels: 64", more, f"model.{more.replace(':', '')}")
        for more in (
            "fp8: true",
            "num_query_groups: 2",
            "activation: fast-swiglu",
            "position_embedding_type: rope",
            "share_embeddings_and_output_weights: false",
            "restore_from_path: x.nemo",
        )
    ),
])  # fmt: skip
def test_a_configuration_of_sections_has_to_agree(tmp_path: Path, printed: str, instead: str, named: str) -> None:
    whole = NEMO_1.evidence(tmp_path, CONFIGURATION).compared
    assert whole.differ == ()
    assert whole.summary == (
        "20 settings printed, 13 compared, 4 without effect on the work of a step, 3 unknown: model.ffn_hidden_size, "
        "model.moe_z_loss_coeff, name; unlike the recipe, with the same work: model.optim.lr 0.0006; "
        "optimizer.learning_rate of the recipe is 0.001"
    )
    (words,) = NEMO_1.evidence(tmp_path, CONFIGURATION.replace(printed, instead)).compared.differ
    assert named in words


@pytest.mark.parametrize(("layers", "sane"), [(4, True), (2, False), (5, False)])
def test_metaseq_counts_its_parameters(tmp_path: Path, layers: int, *, sane: bool) -> None:
    """Positions from 2 on, and a vocabulary with four more tokens; the layers are the recipe's, or not."""
    hidden, length = 128, 128
    count = layers * (12 * hidden**2 + 13 * hidden) + (512 + length + 2 + 2) * hidden
    said = f"2026-11-21 02:58:47 | INFO | metaseq.cli.train | num. model params: {count:,} (num. trained: {count:,})\n"
    log = TrueLog(
        name="", engine="metaseq", ranks=2, gpu=False,
        recipe={
            "model": {"layers": 4, "hidden_size": hidden, "attention_heads": 2, "vocab_size": 508},
            "sequence_length": length, "global_batch_size": 2, "micro_batch_size": 1, "precision": "fp32", "steps": 50,
            "options": {"model_size": "tiny"},
        },
    )  # fmt: skip
    problem = log.problem(tmp_path, said + (LOGS / "metaseq_2_ranks.log").read_text())
    assert (problem is None) is sane
    assert problem is None or (problem.kind, "parameters of rank" in problem.message) == ("wrong_work", True)


@pytest.mark.parametrize("log", readable(TRUE_LOGS, lambda log: log.name), ids=lambda log: log.name)
def test_a_true_log_is_judged_as_it_was(tmp_path: Path, log: TrueLog) -> None:
    problem = log.problem(tmp_path, log.text())
    assert (problem.kind if problem else None) == log.kind, problem


@pytest.mark.parametrize(("log", "pattern", "instead", "named"), readable(
    [(MEGATRON_H200, r"(  num_layers \.+) 12\b", r"\1 2", "layers 2"),
     (MEGATRON_H200, r"(rank \(0, 0, 0\): )125262336", r"\g<1>54398976", "parameters of rank 54398976"),
     (MEGATRON_H200, r"(sequence_length=)2048", r"\g<1>1024", "sequence length 1024"),
     (MEGATRON_H200, r"(grads_in_fp32 \.+) True", r"\1 False", "gradient precision of the model"),
     (MEGATRON_H200, r"(grad_reduce_in_bf16 \.+) False", r"\1 True", "gradient precision bf16"),
     (MEGATRON_H200, r"(Total number of parameters in billions:) 0.12", r"\1 1.31", "parameters 1310000000"),
     (MEGATRON_CPU, r"tensor-model-parallel size: 2", "tensor-model-parallel size: 1", "tensor 1"),
     (MEGATRON_CPU, r"(rank \(1, 0\): )60736", r"\g<1>35552", "parameters of rank 35552"),
     (METASEQ_CPU, r"decoder_ffn_embed_dim=128", "decoder_ffn_embed_dim=256", "feed forward size 256"),
     (METASEQ_CPU, r"decoder_layers=2", "decoder_layers=12", "layers 12"),
     (METASEQ_CPU, r"'tokens_per_sample': 64", "'tokens_per_sample': 32", "sequence length 32"),
     (METASEQ_CPU, r"batch size per GPU = 4", "batch size per GPU = 2", "micro batch size 2"),
     (METASEQ_CPU, r"update_freq': \[1\]", "update_freq': [4]", "update_freq 4"),
     (METASEQ_CPU, r"attention_dropout=0.1", "attention_dropout=0.0", "dropout 0;"),
     (METASEQ_CPU, r"(metaseq.trainer \| )loading train data", r"\1Loaded checkpoint x (", "weights loaded"),
     (METASEQ_CPU, r"num\. trained: 104,064", "num. trained: 4,064", "frozen parameters 100000"),
     (NEMO_2, r"(rank \(0, 0\): )124082688", r"\g<1>54398976", "parameters of rank 54398976"),
     (NEMO_2, r"original vocab_size: 50257", "original vocab_size: 32000", "vocab size 32000"),
     (NEMO_2, r"sequence_length=512", "sequence_length=256", "sequence length 256"),
     (NEMO_2, r"(\n {4}global_batch_size:) 16", r"\1 8", "global_batch_size 8"),
     (NEMO_2, r"bf16=True", "bf16=False", "bf16 off"),
     (NEMO_2, r"(OptimizerConfig\(optimizer=)'adam'", r"\1'sgd'", "optimizer sgd"),
     (LAMBDA_350M, r"facebook/opt-350m", "facebook/opt-125m", "layers 12"),
     (LAMBDA_13B, r"--lora_dim 128", "--lora_dim 128 --disable_dropout", "dropout 0;"),
     (LAMBDA_350M, r"(train_batch_size \.+) 192", r"\1 96", "global batch size 96"),
     (LAMBDA_350M, r"--max_seq_len 512", "--max_seq_len 256", "sequence length 256"),
     (LAMBDA_350M, r"(zero_optimization_stage \.+) 0", r"\1 2", "sharding gradients"),
     (LAMBDA_350M, r"(bfloat16_enabled \.+) False", r"\1 True", "bf16 on"),
     (LAMBDA_350M, r"(fp16_enabled \.+) True", r"\1 False", "fp16 off"),
     (LAMBDA_350M, r"--max_seq_len 512", "--max_seq_len 512 --lora_dim 128", "lora of rank 128"),
     (LAMBDA_13B, r"--lora_dim 128", "--lora_dim 8", "lora of rank 8"),
     (LAMBDA_13B, r"--lora_dim 128", "--lora_dim 128 --only_optimize_lora", "which alone is trained"),
     (LAMBDA_13B, r"--gradient_checkpointing ", "", "activation checkpointing none"),
     (LAMBDA_13B, r"(micro_batch_size_per_gpu) +16", r"\1  8", "micro batch size 8")],
    lambda case: case[0].name,
))  # fmt: skip
def test_a_log_of_other_work_is_refused(tmp_path: Path, log: TrueLog, pattern: str, instead: str, named: str) -> None:
    damaged, changes = re.subn(pattern, instead, log.text())
    assert changes
    problem = known(log.problem(tmp_path, damaged))
    assert problem.kind in {"wrong_work", log.kind}
    assert named in problem.message or log.kind is not None


@pytest.mark.parametrize("ranks", ["0, ", "0, , 1", "0,  ,", "0 1, 2"])
def test_ranks_that_are_cut_say_nothing(ranks: str) -> None:
    line = f" > number of parameters on (tensor, pipeline) model parallel rank ({ranks}): 60736"
    assert list(megatron_claims.parse_claims(line)) == []
