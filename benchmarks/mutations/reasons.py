"""Damage that nothing in the log bears on: which, and why it cannot be found from the log alone."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Attributes: logs, kinds of damage and statistics it is about, as regular expressions, and the reason.

    A log is its reader and its name, such as `metaseq: 2 CPU ranks`.
    """

    logs: str
    kinds: str
    statistics: str
    why: str


_VALUES = (
    "flip a digit|insert a digit|delete a digit|move a decimal point|drop a sign or exponent|no or a huge number|"
    "scale a number|swap numbers|change a count|scale a field|repeat the last line changed"
)
_REASONS = (
    Reason(
        logs="kernel_log: .*", kinds=".*", statistics="verdict",
        why="each line of the kernel's log stands alone: where the one with the error is gone, or its code is another, "
        "nothing says so",
    ),
    Reason(
        logs="(step_log|telemetry): .*", kinds=".*", statistics="matmul_fraction",
        why="a GPU rank says its matmul rate once, and ranks need not be equally fast",
    ),
    Reason(
        logs="megatron_lm: (one H200|JSC's .*)", kinds="scale a field", statistics="reported_tflops_per_gpu",
        why="the same share on every line: Megatron-LM counts FLOPs by another formula than ours, and by another one "
        "in each release",
    ),
    Reason(
        logs="metaseq: 2 CPU ranks.*", kinds="scale a field", statistics=".*",
        why="words and updates per second by the same share on every line of a training that takes a second in all, "
        "where its lines have the time in whole seconds",
    ),
    Reason(
        logs="deepspeed_chat: .*", kinds=_VALUES, statistics="(?!reported_throughput|counted_work|loss_drop).*",
        why="the timer's rates are those of single steps, one in ten, which may differ from the mean. The number of "
        "the whole run, which is the reference's, is held against time, steps and samples",
    ),
    Reason(
        logs=".*", kinds=".*", statistics="loss_drop",
        why="a loss follows from no other number, and those of steps and ranks differ",
    ),
    Reason(
        logs="(nvlink|nvidia_smi): .*", kinds="splice two logs", statistics="verdict",
        why="joined at the right line, two outputs are word for word that of a node that is in order",
    ),
    Reason(
        logs="gnu_time: .*", kinds=".*", statistics="elapsed",
        why="the dates around a command have whole seconds, and other work lies between them, too",
    ),
    Reason(
        logs="telemetry: .*", kinds=".*", statistics="power_capped|throttled|clock_m.*|temperature_max|memory_used_max",
        why="a sample of a GPU follows from no other",
    ),
)  # fmt: skip


def reason(log: str, kind: str, statistic: str) -> str | None:
    """Why this damage cannot be found; None where it can."""
    for each in _REASONS:
        wanted = ((each.logs, log), (each.kinds, kind), (each.statistics, statistic))
        if all(re.fullmatch(pattern, text) for pattern, text in wanted):
            return each.why
    return None
