"""The scripts of runs whose engine is a command: golden files, for the shapes that an operator asks for."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.session.script.prepared import prepare
from tests.support.shipped import shipped_recipes

GOLDEN = Path(__file__).parents[2] / "golden" / "scripts"
# Each run's folder is /shared/run/runs/<recipe>.
SESSION = Session(id="run", folder=Path("/shared/run"))
# A system file, and a recipe that runs there as a command.
ROWS = [
    ("juwels_booster", "nlp13b"),
    ("juwels_booster", "nlp175b"),
    ("juwels_booster", "nlp175b_jube"),
    ("nd96amsr_a100_v4", "metaseq125m"),
    ("nd96amsr_a100_v4", "metaseq175b"),
    ("lambda_8xh100", "chat_350m_bs24_zero0"),
    ("lambda_8xh100", "chat_13b_bs16_zero0"),
    ("lambda_8xh100", "chat_13b_rlhf"),
    ("lambda_8xh100_docker", "chat_350m_bs24_zero0"),
    ("nd96amsr_a100_v4", "azure_gpt3_126m"),
    ("nd96amsr_a100_v4", "azure_gpt3_175b"),
    ("p4de.24xlarge", "aws_gpt3_5b"),
    ("p4de.24xlarge", "aws_gpt3_175b"),
    ("p4de.24xlarge", "aws_torchrun_gpt3_126m"),
    ("p4de.24xlarge", "aws_torchrun_gpt3_175b"),
]
NODES = (1, 2, 8, 96, 128)
FILES = {f"{system}/{recipe}/{nodes}.sh": (system, recipe, nodes) for system, recipe in ROWS for nodes in NODES}


def script(system: str, name: str, nodes: int) -> str:
    """The script of a recipe on so many nodes of a system, or one line that says why there is none."""
    settings = Settings(
        system=load_system(str(shipped("systems") / f"{system}.yaml"), []),
        cluster="slurm",
        allocation="run",
        nodes=nodes,
        run_dir=SESSION.folder.parent,
    )
    recipe = shipped_recipes()[name].on(settings.topology(shipped_recipes()[name]))
    prepared = prepare(RunSpec(key=name, recipe=recipe), settings, SESSION)
    return f"CANNOT RUN: {prepared.message}\n" if isinstance(prepared, Problem) else prepared.script or ""


@pytest.mark.parametrize("name", FILES)
def test_the_script_is_the_golden_one(name: str) -> None:
    """What runs on the nodes changes on purpose only. LLMBENCH_ACCEPT_GOLDEN=1 accepts what is there now."""
    path, text = GOLDEN / name, script(*FILES[name])
    assert text
    #: variable LLMBENCH_ACCEPT_GOLDEN: tests of this project: golden files are rewritten
    if os.environ.get("LLMBENCH_ACCEPT_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    expected = path.read_text() if path.exists() else ""
    if text != expected:
        difference = "".join(
            difflib.unified_diff(expected.splitlines(True), text.splitlines(True), str(path), "this code")
        )
        pytest.fail(f"{difference}\nIf that is meant: LLMBENCH_ACCEPT_GOLDEN=1 pytest {__file__}", pytrace=False)


def test_no_golden_file_is_left_over() -> None:
    """Every file there belongs to a row above."""
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.sh")} == set(FILES)


@pytest.mark.parametrize(("system", "recipe"), ROWS)
def test_a_recipe_runs_in_the_shape_that_it_is_published_for(system: str, recipe: str) -> None:
    """On its own nodes nothing is refused."""
    assert script(system, recipe, shipped_recipes()[recipe].nodes).startswith("#!")
