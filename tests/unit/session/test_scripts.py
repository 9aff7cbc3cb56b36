"""The script of a command's run, run by a real bash: what reaches each program, whatever the words are."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.engines.base import Command, Place, Script
from pytest_llmbench.session.script.scripts import quote, write_script

Launcher = Literal["once", "node", "srun", "torchrun", "deepspeed"]
LAUNCHERS: tuple[Launcher, ...] = ("once", "node", "srun", "torchrun", "deepspeed")
RUNTIMES = ("bare", "pyxis", "enroot", "docker", "apptainer")
IMAGE = "registry/an image:$1"
HOSTILE = ("a b", "'", '"', "$HOME", "$(touch broken)", "`touch broken`", "a\nb", "\\", "*", "!", "", "ü;&|<>#", "~")
VARIABLES = {
    "LLMBENCH_HOSTS": "n1,n2", "LLMBENCH_HOSTFILE": "/shared/host file", "LLMBENCH_FIRST_HOST": "n1",
    "LLMBENCH_PORT": "29500",
}  # fmt: skip
NODE = Topology(nodes=1, gpus_per_node=8)
TWO_NODES = Topology(nodes=2, gpus_per_node=8)

# A program that writes down how it was called, then runs what it carries: srun after its options, a container
# runtime after the image.
STUB = """#!{python} -I
import json, os, sys
name, image = os.path.basename(sys.argv[0]), {image!r}
with open({record!r}, "a") as file:
    said = {{"argv": [name, *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd()}}
    file.write(json.dumps(said) + "\\n")
rest = sys.argv[1:]
if name == "srun":
    while rest[0].startswith("--"):
        rest.pop(0)
elif name == "apptainer":  # it ends at a flag that it does not know, and passes its environment on
    assert rest.pop(0) == "exec", rest
    while rest[0].startswith("-"):
        flag = rest.pop(0)
        assert flag in ("--nv", "--no-home") or (flag in ("--bind", "--pwd") and rest.pop(0)), flag
    assert rest.pop(0) == image, rest
elif name in ("docker", "enroot"):
    rest = rest[rest.index(image) + 1 :]
else:
    sys.exit(int(os.environ.get("STUB_STATUS", "0")))
os.execvp(rest[0], rest)
"""


@dataclass(frozen=True)
class Call:
    """How a program was called."""

    argv: list[str]
    env: Mapping[str, str]
    cwd: str

    @property
    def name(self) -> str:
        return self.argv[0]


@dataclass
class Bash:
    """Runs scripts by a real bash, with programs that write down how they are called."""

    folder: Path
    printed: str = ""

    def __call__(self, text: str, **env: str) -> tuple[int, list[Call]]:
        """Run a script and return its exit status and the calls, in order."""
        record = self.folder / "record"
        record.write_text("")
        for name in ("srun", "docker", "enroot", "apptainer", "deepspeed", "python", "train", "next"):
            stub = self.folder / "bin" / name
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(STUB.format(python=sys.executable, record=str(record), image=IMAGE))
            stub.chmod(0o755)
        (self.folder / "run.sh").write_text(text)
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        given = {"PATH": path, "HOME": "/home/me", **VARIABLES, **env}
        done = subprocess.run(["bash", "run.sh"], cwd=self.folder, env=given, capture_output=True, check=False)
        assert not done.stderr, done.stderr.decode()
        self.printed = done.stdout.decode()
        assert not list(self.folder.rglob("broken"))
        return done.returncode, [Call(**json.loads(line)) for line in record.read_text().splitlines()]


@pytest.fixture
def bash(tmp_path: Path) -> Bash:
    return Bash(tmp_path)


def environment(runtime: str, **changes: Any) -> Environment:
    # The folder that commands start in: of those of a run none is here.
    image = {"runtime": runtime, "image": IMAGE, "mounts": ("/a b:/a b",), "workdir": "/"}
    container = None if runtime == "bare" else image
    return Environment.model_validate({"container": container, **changes})


def script(
    *commands: Command, where: Environment, slurm: bool = True, topology: Topology = TWO_NODES, **env: str
) -> str:
    """The script of commands; bash must find nothing wrong in how it is written."""
    place = Place(folder=Path("/shared/a run"), environment=where, slurm=slurm, time_limit_min=5)
    text = write_script(Script(commands=commands, notes=("two\nlines", "$(touch broken)")), place, topology, env)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)
    return text


def carriers(launcher: Launcher, runtime: str, *, slurm: bool) -> list[str]:
    """The programs that carry a command to where it runs, outermost first."""
    by_srun = slurm and (launcher in {"node", "srun", "torchrun"} or runtime == "pyxis")
    return [*(["srun"] if by_srun else []), *([runtime] if runtime not in {"bare", "pyxis"} else [])]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_word_arrives_on_slurm(bash: Bash, launcher: Launcher, runtime: str, nodes: int) -> None:
    topology = Topology(nodes=nodes, gpus_per_node=8)
    command = Command(launcher=launcher, argv=("train", *HOSTILE), launcher_args=("--its own",))
    status, calls = bash(script(command, where=environment(runtime), topology=topology))
    assert status == 0
    expected = carriers(launcher, runtime, slurm=True)
    assert [call.name for call in calls[:-1]] == expected
    last = calls[-1].argv
    own = -len(HOSTILE) - 1
    assert last[-len(HOSTILE) :] == list(HOSTILE)
    assert last[own] == "train"
    if launcher in {"torchrun", "deepspeed"}:
        assert last[own - 1] == "--its own"
    if launcher == "torchrun":
        assert last[:4] == ["python", "-u", "-m", "torch.distributed.run"]
        assert {"--nproc_per_node=8", f"--nnodes={nodes}", "--rdzv_endpoint=n1:29500"} <= set(last)
    if launcher == "deepspeed":
        assert last[:2] == ["deepspeed", "--hostfile=/shared/host file"]
    if expected[:1] == ["srun"]:
        options = set(calls[0].argv)
        once = launcher in {"once", "deepspeed"}
        count, per_node = (1 if once else nodes), (8 if launcher == "srun" else 1)
        assert {f"--nodes={count}", f"--ntasks={count * per_node}", f"--ntasks-per-node={per_node}"} <= options
        assert {"--nodelist=n1" if once else "--nodelist=n1,n2", "--gpus-per-node=8", "--overlap"} <= options
        assert (f"--container-image={IMAGE}" in options) == (runtime == "pyxis")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("launcher", ["node", "srun", "torchrun"])
@pytest.mark.parametrize(("task", "speaks"), [("0", True), ("1", False)])
def test_each_nodes_task_labels_the_log(bash: Bash, launcher: Launcher, runtime: str, task: str, speaks: bool) -> None:
    text = script(Command(launcher=launcher, argv=("train",)), where=environment(runtime))
    named = {"SLURM_LOCALID": task, "SLURMD_NODENAME": "n2"}
    bash(text, LLMBENCH_LABEL="#llmbench run=a launched=1.500 of=2", **named)
    label = Label(token="a", launched=1.5, of=2, host="n2")
    assert bash.printed == (f"{label}\n" if speaks else "")
    bash(text, **named)
    assert bash.printed == ""


@pytest.mark.parametrize("runtime", ["bare", "enroot", "docker", "apptainer"])
@pytest.mark.parametrize("launcher", ["once", "node", "torchrun", "deepspeed"])
def test_every_word_arrives_without_slurm(bash: Bash, launcher: Launcher, runtime: str) -> None:
    command = Command(launcher=launcher, argv=("train", *HOSTILE))
    _, calls = bash(script(command, where=environment(runtime), slurm=False, topology=NODE))
    assert [call.name for call in calls[:-1]] == carriers(launcher, runtime, slurm=False)
    assert calls[-1].argv[-len(HOSTILE) :] == list(HOSTILE)


@pytest.mark.parametrize(("launcher", "runtime"), [("srun", "bare"), ("srun", "docker"), ("once", "pyxis")])
def test_what_needs_srun_is_refused_without(launcher: Launcher, runtime: str) -> None:
    """One process in place of eight ranks, or none in an image, would be another run than the one asked for."""
    with pytest.raises(ConfigError, match="only srun can start"):
        script(Command(launcher=launcher, argv=("train",)), where=environment(runtime), slurm=False, topology=NODE)


def test_a_single_rank_needs_no_srun(bash: Bash) -> None:
    one = Topology(nodes=1, gpus_per_node=1)
    _, calls = bash(
        script(Command(launcher="srun", argv=("train",)), where=environment("bare"), slurm=False, topology=one)
    )
    assert [call.argv for call in calls] == [["train"]]


@pytest.mark.parametrize(("nodes", "endpoint"), [(1, "n1:29500"), (2, "n1i:29500")])
def test_ranks_meet_at_a_node_s_fast_name_where_there_are_several(bash: Bash, nodes: int, endpoint: str) -> None:
    """A single node meets at its own address, to which a suffix would make no name."""
    where = environment("bare", rendezvous_suffix="i")
    topology = Topology(nodes=nodes, gpus_per_node=8)
    _, calls = bash(script(Command(launcher="torchrun", argv=("train",)), where=where, topology=topology))
    assert f"--rdzv_endpoint={endpoint}" in calls[-1].argv


@pytest.mark.parametrize("runtime", ["enroot", "docker", "apptainer"])
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_rank_in_an_image_knows_which_it_is(bash: Bash, launcher: Launcher, runtime: str) -> None:
    """A runtime passes on what it is told alone: the run's variables, and to a task of srun its number."""
    where = environment(runtime, env={"OWN": "1"}, secrets={"TOKEN": "/dev/null"})
    _, calls = bash(script(Command(launcher=launcher, argv=("train",)), where=where, SITE="2"))
    argv = calls[-2].argv
    passed = {argv[at + 1] for at, word in enumerate(argv) if word == "--env"}
    if runtime == "apptainer":  # all that it has, as srun's variables
        passed = {*calls[-1].env}
    assert {"OWN", "TOKEN", "SITE", *VARIABLES} <= passed
    assert runtime == "apptainer" or ("SLURM_PROCID" in passed) == (launcher == "srun")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_variables_and_folder_are_those_of_one_command(bash: Bash, runtime: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    own = {"ONE": "a b\n$HOME", "TWO": "at $LLMBENCH_PORT"}
    first = Command(launcher="once", argv=("train",), folder=str(folder), env=own)
    _, calls = bash(script(first, Command(launcher="once", argv=("next",), bare=True), where=environment(runtime)))
    train = next(call for call in calls if call.name == "train")
    assert (train.env["ONE"], train.env["TWO"], train.cwd) == ("a b\n$HOME", "at 29500", str(folder))
    assert calls[-1].name == "next"
    assert not {"ONE", "TWO"} & calls[-1].env.keys()
    assert calls[-1].cwd == str(tmp_path)


def test_the_environment_is_laid_in_its_order(bash: Bash, tmp_path: Path) -> None:
    """The system's variables, the file over them, the environment's own over both; setup comes last and sees all."""
    file = tmp_path / "env file.sh"
    file.write_text('export A=file B=file C="$NOT_SET"\n')
    where = environment(
        "bare", env_file=str(file), env={"B": "own 'quoted' $HOME"}, setup=("export D=$A-$NOT_SET_EITHER",)
    )
    _, calls = bash(script(Command(launcher="once", argv=("train",)), where=where, A="system", E="system"))
    found = calls[-1].env
    assert [found[name] for name in "ABCDE"] == ["file", "own 'quoted' $HOME", "", "file-", "system"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_secret_goes_from_its_file_to_the_rank_alone(bash: Bash, tmp_path: Path, runtime: str) -> None:
    secret = "hunter2 $HOME `id`"
    file = tmp_path / "a key"
    file.write_text(secret + "\n")
    where = environment(runtime, secrets={"API_KEY": str(file)})
    text = script(Command(launcher="once", argv=("train",)), where=where)
    assert secret not in text
    assert "hunter2" not in text
    _, calls = bash(text)
    assert calls[-1].env["API_KEY"] == secret
    assert not any("hunter2" in word for call in calls for word in call.argv)


def test_a_missing_secret_ends_the_run_before_its_command(tmp_path: Path) -> None:
    where = environment("bare", secrets={"API_KEY": str(tmp_path / "none")})
    text = script(Command(launcher="once", argv=("touch", str(tmp_path / "started"))), where=where)
    assert subprocess.run(["bash", "-c", text], capture_output=True, check=False, cwd=tmp_path).returncode != 0
    assert not (tmp_path / "started").exists()


def test_the_first_command_that_fails_ends_the_run(bash: Bash) -> None:
    """The second is not started, and the script's exit status is the first's."""
    commands = [Command(launcher="once", argv=(name,)) for name in ("train", "next")]
    status, calls = bash(script(*commands, where=environment("bare")), STUB_STATUS="7")
    assert (status, [call.name for call in calls]) == (7, ["train"])


def test_lines_for_bash_are_run_by_bash(bash: Bash) -> None:
    lines = 'for word in \'a b\' c; do\n  train "$word" "$LLMBENCH_PORT"\ndone'
    _, calls = bash(script(Command(launcher="once", argv=(lines,), shell=True), where=environment("bare")))
    assert [call.argv for call in calls] == [["train", "a b", "29500"], ["train", "c", "29500"]]


@pytest.fixture(scope="module")
def echo() -> Callable[[str], str]:
    """What bash makes of one quoted word, with the variables of a run set."""

    def ask(quoted: str) -> str:
        text = f"printf '%s.' {quoted}"
        env = {**VARIABLES, "HOME": "/home/me", "PATH": os.environ["PATH"]}
        return subprocess.run(["bash", "-uc", text], env=env, capture_output=True, check=True).stdout.decode()

    return ask


PIECES = st.sampled_from([*HOSTILE, "$", "{", "}", "${HOME}", "$LLMBENCH", "$LLMBENCH_PORTS", "${LLMBENCH_PORT:", "x"])
NAMES = st.sampled_from([pattern.format(name) for name in VARIABLES for pattern in ("${}", "${{{}}}")])


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PIECES, max_size=5), variable=st.none() | NAMES)
def test_a_word_may_use_the_variables_of_a_run_and_nothing_else(
    echo: Callable[[str], str], pieces: list[str], variable: str | None
) -> None:
    """All else in it is text. A slash on either side keeps a variable apart from the text beside it."""
    word = "".join(pieces)
    if variable is None:
        expected = word
    else:
        value = VARIABLES[variable.strip("${}")]
        word, expected = f"{word}/{variable}/{word}", f"{word}/{value}/{word}"
    assert echo(quote(word)) == expected + "."
