"""Stand for a session or a rank, as the program `asking.py` does: `python -I -S standing.py SOCKET KIND ARGUMENT...`.

It is started several times for each session, so it imports next to nothing. What is rare it leaves to `asking.py`, with
the same arguments: to start a server, and to start a new Python for a session that needs one.
"""

import _signal  # type: ignore[import-not-found]  # `signal` imports enum
import _socket
import os
import sys
from _json import encode_basestring_ascii as quote

# They change nothing of how a forked session starts: see `asking.may_ask`.
_HARMLESS = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUNBUFFERED"}


def ask(at: str, kind: str, args: list[str]) -> tuple[_socket.socket, int]:
    """Ask for a session with the streams, folder and environment of this process, as `asking.ask` does.

    Raises:
        OSError: no server answers.
    """
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(at)
    folder = os.getcwd()  # noqa: PTH109 - nothing imports pathlib here
    environment = ",".join(f"{quote(name)}:{quote(value)}" for name, value in os.environ.items())
    text = (
        f'{{"kind":{quote(kind)},"args":[{",".join(map(quote, args))}],"cwd":{quote(folder)},'
        f'"env":{{{environment}}},"cpus":{[*os.sched_getaffinity(0)]}}}'
    ).encode()
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([len(text).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    server.sendall(text)
    return server, receive(server)


def receive(server: _socket.socket) -> int:
    """The process id of a session, or its exit status; a negative process id is a refusal."""
    answer = server.recv(4)
    if len(answer) < 4:
        raise OSError("the session was lost with its server")
    return int.from_bytes(answer, "big", signed=True)


def main() -> None:
    """Stand for a session, or have `asking.py` do it."""
    at, kind, *args = sys.argv[1:]
    pid = -1
    python = {name for name, value in os.environ.items() if name.startswith("PYTHON") and value}
    if python <= _HARMLESS and "ATEN_CPU_CAPABILITY" not in os.environ and "no:llmbench" not in args:
        try:
            server, pid = ask(at, kind, args)
        except OSError:
            pid = -1
    if pid < 0:
        program = __file__.replace("standing.py", "asking.py")
        os.execv(sys.executable, [sys.executable, "-I", "-S", program, *sys.argv[1:]])
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    status = receive(server)
    if status < 0:
        if status != -_signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
