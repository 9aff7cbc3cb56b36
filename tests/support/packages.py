"""Packages of others, as an installation would have left them: modules and what they announce."""

from collections.abc import Mapping
from pathlib import Path

COUNTING = '''
"""An engine without PyTorch: each rank learns how frequent every word is."""

import math
import random
import time

from pytest_llmbench.api import InProcess


class Counting(InProcess):
    name = "counting"
    entry = f"{__name__}:train"

    def problems(self, recipe, topology):
        yield from ()


def train(context, log):
    recipe = context.config
    words = range(recipe["model"]["vocab_size"])
    weights = [1 / (word + 1) for word in words]
    samples = recipe["global_batch_size"] // context.world_size
    counts = [1] * len(words)
    draw = random.Random(context.rank)
    ended = time.time()
    for step in range(1, recipe["steps"] + 1):
        began = ended
        log.phase(step, "forward")
        tokens = draw.choices(words, weights, k=samples * recipe["sequence_length"])
        total = sum(counts)
        loss = -sum(math.log(counts[token] / total) for token in tokens) / len(tokens)
        gradient = [count / total for count in counts]
        for token in tokens:
            gradient[token] -= 1 / len(tokens)
            counts[token] += 1
        ended = time.time()
        log.step(
            seconds=ended - began, tokens=len(tokens), samples=samples, loss=loss, grad_norm=math.hypot(*gradient),
            peak_memory_bytes=None, ended=ended,
        )
'''

CORES = '''
"""A check: how many CPUs a rank may use."""

import os

from pytest_llmbench.api import HostCheck, Probe, Report, deadline_of, one_per_host


class Cores(HostCheck):
    name = "cores"
    summary = "CPUs that a rank may use"
    entry = f"{__name__}:cores"

    def run(self, fleet, settings):
        (answers,) = fleet.run([Probe(name="cores", entry=self.entry, deadline_s=deadline_of(self, settings))])
        facts, unjudged = one_per_host(answers)
        return Report(unjudged=unjudged, evidence={"cores": facts})


def cores(context, log):
    return {"cpus": len(os.sched_getaffinity(0))}
'''


def install(folder: Path, name: str, modules: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the modules of a package and its `*.dist-info` into a folder that is, or will be, on the path.

    Args:
        folder: where.
        name: the distribution's.
        modules: source by name.
        entries: entry points by group.
    """
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line for group, told in entries.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in told.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    return folder
