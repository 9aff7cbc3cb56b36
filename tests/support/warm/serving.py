"""A Python that has started pytest once, and forks a session for each who asks: `python serving.py SOCKET`.

A new Python takes a second of CPU time to import pytest, its plugins and this package, and the tests start hundreds.
PyTorch takes several for each rank: where the socket's name ends in `.torch`, this Python has imported that instead,
and what ranks without PyTorch have where it ends in `.ranks`.
Where it ends in `.tests`, this Python has imported the tests of the arguments after it, for workers of pytest-xdist.
A forked session has these imports, and nothing else of the one before: its folder, environment, arguments, `sys.path`
and the streams are the asker's. See `asking.py` for the other side.
"""

import array
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pickle
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

# The server ends after this time without a request.
IDLE_S = 120.0

# Packages that a session may import; the others are for nodes, or for commands of their own.
PACKAGES = ("checks", "cluster", "core", "engines", "judging", "plugin", "readers", "reporting", "session")

# Modules with functions for ranks that import PyTorch.
HEAVY = tuple(
    f"pytest_llmbench.{name}."
    for name in ("checks.collectives", "checks.compute", "checks.network", "engines.deepspeed", "engines.torch")
)

# The modules that ranks are started with, and what those with PyTorch import of ours.
RANKS = tuple(f"pytest_llmbench.workloads.rank.{name}" for name in ("main", "probe"))
WITH_TORCH = tuple(
    f"pytest_llmbench.{name}"
    for name in (
        "engines.torch.ranks.run", "engines.deepspeed.ranks.run", "engines.megatron_core.ranks.run",
        "checks.collectives.nodes.collectives", "checks.compute.nodes.compute", "checks.network.nodes.pairs",
    )
)  # fmt: skip

REFUSED = -1000

# A variable of ranks whose rate of matrix products is not judged: measuring it takes half a second of CPU time a rank.
SMALL_CEILING = "SMALL_CEILING"


def serve(door: socket.socket, address: Path) -> None:
    """Fork a session for everybody who asks. Returns in the session, and after the last of them in the server."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    door.settimeout(IDLE_S)
    while True:
        try:
            asker, _ = door.accept()
        except TimeoutError:
            address.unlink(missing_ok=True)
            return
        if os.fork() == 0:
            door.close()
            attend(asker)
            return
        asker.close()


def attend(asker: socket.socket) -> None:
    """Start one session and say how it ended. Returns in the session only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams = receive(asker)
    if request["kind"] != "worker" and shadowed(request):
        asker.sendall(REFUSED.to_bytes(4, "big", signed=True))
        os._exit(0)
    session = os.fork()
    if session == 0:
        asker.close()
        become(request, streams)
        return
    with contextlib.suppress(OSError):
        asker.sendall(session.to_bytes(4, "big", signed=True))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(session)
    ready, _, _ = select.select([ended, asker.fileno()], [], [])
    if ended not in ready and request["kind"] != "controller":
        os.kill(session, signal.SIGKILL)  # the asker has gone, as if this were the process it had killed
    _, status = os.waitpid(session, 0)
    with contextlib.suppress(OSError):
        asker.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    os._exit(0)


def receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is asked for, and the three streams of the asker."""
    streams = array.array("i")
    size, ancillary, _, _ = asker.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    if not size:  # a client only looked whether the server listens
        os._exit(0)
    for _, _, data in ancillary:
        streams.frombytes(data)
    with asker.makefile("rb", buffering=-1) as text:
        request: dict[str, Any] = json.loads(text.read(int.from_bytes(size, "big")))
    return request, list(streams)


def shadowed(request: dict[str, Any]) -> bool:
    """Whether the asker's own modules would come before those that are imported here, and are others."""
    for folder in filter(None, [request["cwd"], *request["env"].get("PYTHONPATH", "").split(os.pathsep)]):
        for inside in Path(folder).iterdir() if Path(folder).is_dir() else ():
            name = inside.name.partition(".")[0]
            if name in {"sitecustomize", "usercustomize"}:
                return True
            if name in sys.modules and (inside.suffix in {".py", ".so"} or inside.is_dir()):
                spec = sys.modules[name].__spec__
                if not str(spec and spec.origin).startswith(f"{inside}"):
                    return True
    return False


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Have nothing of this process but what it has imported."""
    os.setsid()
    os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    sys.stdin, sys.stdout, sys.stderr = map(_opened, (sys.stdin, sys.stdout, sys.stderr), range(3))
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    own = [folder for folder in request["env"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    module = request["kind"] in {"controller", "module"}
    first = str(Path(sys.executable).parent) if request["kind"] == "script" else request["cwd"] if module else ""
    sys.path[:] = [first, *own, *sys.path]
    importlib.invalidate_caches()
    if "xdist.plugin" in sys.modules:
        sys.modules["xdist.plugin"]._sys_path[:] = sys.path  # it takes a copy when it is imported
    if module:
        sys.argv[:] = request["args"]
        sys.modules.pop(sys.argv[0], None)  # else it is found as pytest has rewritten it
        if SMALL_CEILING in os.environ:
            sys.modules["pytest_llmbench.workloads.training.matmul"]._SIDE["cpu"] = 64
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif request["kind"] == "script":
        sys.argv[:] = [f"{first}/pytest", *request["args"]]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        code, *sys.argv[1:] = request["args"]
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(code, vars(sys.modules["__main__"]))  # as `python -c` does


def _opened(old: Any, number: int) -> Any:
    """A stream of the asker in the place of one of the server: whether it is a terminal decides how it is buffered."""
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    buffered = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, old.encoding, old.errors, line_buffering=number == 2 or raw.isatty())


def import_ranks() -> None:
    """Import what every rank does, and what engines and checks of others do, which import `pytest_llmbench.api`."""
    for name in (*RANKS, "pytest_llmbench.engines.in_process", "pytest_llmbench.checks.host.base"):
        importlib.import_module(name)
    remember_versions()
    _forget()


def import_torch() -> None:
    """Import what every engine imports at its first step, models of engine deepspeed, and the compiler of both."""
    models = ("transformers.models.opt.modeling_opt", "torch._inductor.compile_fx")
    for name in ("torch", "torch._dynamo", "torch.distributed.fsdp", *models):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules.pop("pynvml", None)  # tests have a stand-in of that name
    for name in (*RANKS, *WITH_TORCH):
        importlib.import_module(name)
    remember_versions()
    _forget()


def collect_tests(args: list[str]) -> None:
    """Collect tests once, for workers that find the modules of all of them imported."""
    pytest = importlib.import_module("pytest")
    pytest.main(
        ["-p", "no:cacheprovider", "-n0", "--collect-only", "-q", *args], plugins=[Importing(("xdist.remote",))]
    )
    read_shipped()
    _forget()


def remember_yaml() -> None:
    """Parse a text once, above all the recipes and systems of the package: a quarter of a small session's time."""
    files: Any = importlib.import_module("pytest_llmbench.core.yaml_files")
    parse = files._parse
    if parse.__module__ == files.__name__:  # a worker of pytest-xdist has it from the process that it was forked from
        parsed = functools.lru_cache(256)(lambda text: pickle.dumps(parse(text)))
        files._parse = lambda text: pickle.loads(parsed(text))


def read_shipped() -> None:
    """Read the recipes and systems of the package; what its recipes amount to is a sixth of a small session's time."""
    files: Any = importlib.import_module("pytest_llmbench.core.yaml_files")
    recipes: Any = importlib.import_module("pytest_llmbench.core.recipe.recipes")
    shipped = importlib.import_module("pytest_llmbench.core.paths").shipped
    for path in Path(shipped("systems")).glob("*.yaml"):
        files.read_yaml(path)
    read = recipes._recipes_of
    folder = Path(shipped("recipes"))
    known = {path: read(path) for path in folder.glob("*.yaml")}
    recipes._recipes_of = lambda path: {**known[path]} if path in known else read(path)


def remember_installed() -> None:
    """Read once what the installed packages announce: each session asks for the entry points and files of all."""
    metadata = importlib.import_module("importlib.metadata")
    for name in ("entry_points", "files"):
        read = vars(metadata.Distribution)[name].fget
        known = {
            str(found._path): read(found)
            for found in metadata.distributions()
            if name == "entry_points" or any(entry.group == "pytest11" for entry in found.entry_points)
        }

        def remembered(found: Any, read: Any = read, known: dict[str, Any] = known) -> Any:
            path = str(found._path) if hasattr(found, "_path") else ""
            return known[path] if path in known else read(found)

        setattr(metadata.Distribution, name, property(remembered))


def remember_versions() -> None:
    """Look once for the packages whose versions each rank notes; those on a path of its own come first."""
    metadata = importlib.import_module("importlib.metadata")
    names = importlib.import_module("pytest_llmbench.workloads.node.installed").PACKAGES
    read, paths, known = metadata.version, {*sys.path}, {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = read(name)

    def remembered(name: str) -> Any:
        own = [path for path in sys.path if path not in paths]
        for found in metadata.distributions(name=name, path=own):
            return found.version
        if name in names and name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name] if name in known else read(name)

    vars(metadata)["version"] = remembered


def start_pytest(door: Path, warm: Any) -> None:
    """Start pytest where there is nothing to test, and import what a session of ours needs."""
    pytest = importlib.import_module("pytest")
    with tempfile.TemporaryDirectory() as nothing, contextlib.chdir(nothing):
        pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", nothing], plugins=[Importing(_names())])
    remember_yaml()
    read_shipped()
    remember_installed()
    _forget()
    # Workers of pytest-xdist are sessions as well: they are asked for by the same program as others.
    asking = [sys.executable, "-I", "-S", str(Path(__file__).with_name("standing.py"))]
    io_of_execnet = importlib.import_module("execnet.gateway_io")
    io_of_execnet.popen_args = lambda _spec: [  # type: ignore[attr-defined]
        *asking, str(door), "code", "import sys;exec(eval(sys.stdin.readline()))",
    ]  # fmt: skip
    executors = importlib.import_module("pytest_llmbench.cluster.executors")

    def start_forked(command: Sequence[str], stderr: IO[bytes], **rest: Any) -> Any:
        """Start the controller of ranks on this machine, and have it start ranks that are forked as well.

        Each comes from a process that has imported what it imports. The controller outlives this session, as it would
        if this were its parent.
        """
        _, *assigned, shell, _, line = command
        told = dict(each.split("=", 1) for each in assigned)
        python, _, _, module, folder = shlex.split(told["SUBMITIT_LOCAL_COMMAND"])
        task = Path(folder, "task.json")
        if python == sys.executable and module in RANKS and task.exists():
            imported = ".torch" if json.loads(task.read_bytes())["entry"].startswith(HEAVY) else ".ranks"
            told["SUBMITIT_LOCAL_COMMAND"] = shlex.join(
                [*asking, str(door.with_suffix(imported)), "module", module, folder]
            )
        environment = {**os.environ, **told}
        if line.startswith("exec ") and warm.may_ask((), environment):  # else lines of the site come first
            module, logs = shlex.split(line)[-2:]
            with contextlib.suppress(warm.RefusedError):
                return warm.Forked([module, logs], Path.cwd(), environment, stderr, at=door, kind="controller")
        return subprocess.Popen([shell, "-c", line], env=environment, stderr=stderr, **rest)

    vars(executors)["subprocess"] = types.SimpleNamespace(Popen=start_forked)
    heavy = {"torch", "numpy", "deepspeed", "megatron"} & set(sys.modules)
    assert not heavy, f"{heavy} imported"


class Importing:
    """A plugin that imports what sessions need while pytest rewrites what is imported."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    def pytest_collection(self) -> None:
        """Import it."""
        for name in self._names:
            importlib.import_module(name)


def _names() -> Iterator[str]:
    yield from ("submitit", "xdist.remote", "xdist.dsession", "execnet.gateway_base")
    ours = importlib.import_module("pytest_llmbench")
    for package in PACKAGES:
        inner = importlib.import_module(f"{ours.__name__}.{package}")
        for module in pkgutil.walk_packages(inner.__path__, f"{inner.__name__}."):
            if not {"nodes", "ranks"} & set(module.name.split(".")):  # for nodes
                yield module.name


def _forget() -> None:
    """Forget what was found out with the environment and the `sys.path` of the server."""
    extensions = importlib.import_module("pytest_llmbench.core.extensions").Extensions
    for thing in gc.get_objects():
        if issubclass(type(thing), extensions):
            vars(thing).pop("_installed", None)
        elif type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("pytest_llmbench"):
            thing.cache_clear()


def main() -> None:
    """Serve at a socket until nobody asks."""
    address, tests = Path(sys.argv[1]), sys.argv[2:]
    if not tests:
        os.chdir("/")
    warm = importlib.import_module("asking")  # from this folder, which then leaves the path
    del sys.path[0], sys.modules["asking"]
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(address))
        door.listen(64)
        if address.suffix == ".torch":
            import_torch()
        elif address.suffix == ".ranks":
            import_ranks()
        elif tests:
            collect_tests(tests)
        else:
            start_pytest(address, warm)
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"
        sys.stdout.flush()  # a session would print what is left of it
        gc.collect()
        gc.freeze()
        try:
            serve(door, address)
        except SystemExit as end:
            leave(end.code)
        leave(None)


def leave(code: object) -> None:
    """End as Python does, but for taking apart all that is imported: a tenth of what a small session computes."""
    if code is None or isinstance(code, int):
        vars(threading)["_shutdown"]()
        vars(atexit)["_run_exitfuncs"]()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code or 0) & 0xFF)
    sys.exit(str(code))


if __name__ == "__main__":
    main()
