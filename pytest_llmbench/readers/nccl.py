"""Reads NCCL's log lines (`NCCL_DEBUG=INFO`): transport, NICs, algorithms and variables.

The forms are those of NCCL 2.7 to 2.30. Lines of many ranks may be mixed, stand behind other prefixes, or share a line.
An unknown part at the end of a line is accepted; a line that begins as one of the forms and goes on otherwise counts as
unread.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pytest_llmbench.core.record.nccl import Fact, LinkKind, NcclComm, NcclLink, NcclLog
from pytest_llmbench.judging.transport import judge_transport

NcclProcess = tuple[str, str]  # host and process id, as NCCL prints them

_LONGEST = 600
_MOST_WARNINGS = 20
_FIRST_BYTES = 32 << 20
_HEAD = re.compile(
    r"(?P<host>[^\s:\[\]]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[-?\d{1,4}\] "
    r"(?:\S{1,200}:\d{1,6} )?NCCL (?P<level>INFO|WARN) ",
    re.ASCII,
)
_MARK = re.compile(r"NCCL (?:INFO|WARN)")
_NAME = re.compile(r"[a-z0-9][\w.-]*$", re.ASCII | re.IGNORECASE)
# Ray colours its lines, and prints the same line of several ranks once.
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_REPEATED = re.compile(r"\s*\[repeated \d{1,9}x across cluster\].*$")
_VERSION = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?\S{0,40})", re.ASCII)
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? : (?P<sender>\d{1,7})(?:\[\w{1,20}\])? -> "
    r"(?P<receiver>\d{1,7})(?:\[\w{1,20}\])? (?:\[(?:send|receive)\] )?via (?P<via>\S.*)",
    re.ASCII,
)
_COLLNET = re.compile(
    r"Coll(?:Net)? \d{1,4}(?:/\d{1,4})? : (?P<rank>\d{1,7})\S* (?:\[(?:send|receive)\] )?via (?P<via>COLLNET/\S.*)",
    re.ASCII,
)
_VIA = re.compile(
    r"(?P<p2p>P2P/(?:direct pointer|IPC|CUMEM|MNNVL|indirect/\d+\S*)(?:/read)?)"
    r"|(?P<shm>direct shared memory|SHM/\w+(?:/\w+)?|SHM(?=\s|$))"
    r"|(?P<net>(?:NET|COLLNET)/(?P<name>[^/]{1,60})/(?P<nic>\d{1,4})(?:\(\d{1,7}\))?(?P<gdr>/GDRDMA(?:\(PCI\))?)?\S*)",
    re.ASCII,
)
# The order of ranks in a ring or a tree.
_ORDER = re.compile(r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? : +\d+(?: +\d+)*\s*$", re.ASCII)
_COMM = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d{1,7}) n[Rr]anks (?P<ranks>\d{1,7})(?: nNodes (?P<nodes>\d{1,7}))?"
    r"(?: localRanks (?P<local>\d{1,5}) localRank \d{1,5})?(?: MNNVL (?P<mnnvl>\d))?(?:.* commId (?P<id>0x[0-9a-f]+))?",
    re.ASCII,
)
_NIC = re.compile(r"\[\d{1,4}\] ?([\w.+-]{1,60}:\d{1,3})/(IB|RoCE)", re.ASCII)
_CHANNELS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels(?:, \d{1,4} collnet channels)?(?:, (?P<nvls>\d{1,4}) nvls channels)?, "
    r"\d{1,4} p2p channels",
    re.ASCII,
)
_ALGORITHM = re.compile(
    r"(?:(?P<what>[A-Z]\w{1,40}): )?(?P<size>\d{1,20}) Bytes -> Algo (?P<algo>\w{1,30}) proto (?P<proto>\w{1,20})",
    re.ASCII,
)
_ANY = "any"  # the operation, which NCCL left out until 2.21
# By their numbers, as NCCL printed them until 2.23.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_VARIABLE = re.compile(r"(?P<name>NCCL_[A-Z0-9_]{1,60}) set (?:by \w{1,20} )?to (?P<value>.{0,200}?)\.?\s*$", re.ASCII)
_NVLS = re.compile(r"NVLS multicast support is (?P<no>not )?available on dev \d", re.ASCII)
_CLIQUE = re.compile(r"MNNVL (?P<mnnvl>\d) cliqueId \w{1,20} cliqueSize (?P<size>\d{1,6})", re.ASCII)
_OFI = re.compile(
    r"(?:NET/OFI )?Selected [Pp]rovider is (?P<name>[\w;-]{1,40}).*\(found (?P<count>\d{1,4}) nics\)", re.ASCII
)
# Openings of the lines that are read: one of these that goes on otherwise is unread.
_READ = (
    "Channel ",
    "Ring ",
    "CollNet ",
    "Coll ",
    "comm 0x",
    "ncclComm",
    "NET/OFI Selected",
    "NVLS multicast",
    "MNNVL ",
)
_OTHERS = ("Ring ", "ncclComm", "MNNVL ")  # openings of other lines, too
# Lines that are facts by their words, by the name of the fact.
_FACTS: Mapping[str, re.Pattern[str]] = {
    "no_ib": re.compile(r"NET/IB\w* : No device found"),
    "no_gdr": re.compile(r"(?:NET/(?!Socket)\w+ ?: )?GPU Direct RDMA Disabled for "),
    "no_p2p": re.compile(r"Could not enable P2P between dev|P2P is disabled between connected GPUs"),
    "no_imex": re.compile(r"MNNVL \(cliqueSize \d+\) is available but not working"),
    "no_nvls": re.compile(r"Failed to bind NVLink SHARP"),
    "only_tcp": re.compile(r"(?:NET/OFI )?(?:Only EFA provider is supported|Selected [Pp]rovider is tcp)"),
}


class _Text(NamedTuple):
    """One message of NCCL."""

    host: str
    pid: str
    level: str
    text: str
    line: str


def condense(lines: Iterable[str], most: int) -> list[str]:
    """The lines that `NcclReader` reads, each once: of the channels between two ranks by the same way, the first.

    Up to `most` lines of them, and the first damaged ones.
    """
    reader, kept, unread = NcclReader(), list[str](), list[str]()
    for line in lines:
        before = reader.unread
        if reader.take(line) and len(kept) < most:
            kept.append(_printable(line))
        elif reader.unread > before and len(unread) < _MOST_WARNINGS:
            unread.append(_printable(line))
    return [*kept, *unread]


def find_faults(paths: Iterable[Path]) -> tuple[str, ...]:
    """Faults of the way of the data in the logs of a training, each in a sentence with its cure.

    NCCL prints as it begins, so only the first 32 MiB of a file are read. The machine is unknown.
    """
    reader = NcclReader()
    for path in paths:
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(_FIRST_BYTES).splitlines():
                if b"NCCL " in line:
                    reader.take(line.decode(errors="replace"))
    found = judge_transport(reader.logs(), {})
    return tuple(f"{one.text}; {one.cure}" for one in found)


class NcclReader:
    """Reads lines one by one. `unread` counts damaged ones."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostLines] = {}
        self._processes: dict[str, set[str]] = {}  # of each host
        self._version: str | None = None

    def take(self, line: str, host: str | None = None) -> bool:
        """Read a line, of a host if it is known; true if it has a new fact."""
        if "NCCL" not in line:
            return False
        news = False
        if self._version is None and (version := _VERSION.search(line)):
            self._version, news = version[1], True
        messages = list(self._split(line))
        lost = len(_MARK.findall(line)) - len(messages)  # whose prefix is damaged
        for message in (*messages, *[None] * lost):
            name = host or (message.host if message else next(iter(self._hosts), ""))
            own = self._hosts.setdefault(name, _HostLines(name))
            own.count += 1
            news = (own.take(message) if message else own.refuse(line)) or news
        return news

    def _split(self, line: str) -> Iterator[_Text]:
        """Yield the messages of a line: two processes may write into one."""
        heads = []
        for head in _HEAD.finditer(line):
            host = self._host_of(head["host"], head["pid"])
            self._processes.setdefault(host, set()).add(head["pid"])
            heads.append((head, host, head.start() + len(head["host"]) - len(host)))
        ends = [start for _, _, start in heads[1:]] + [len(line)]
        for (head, host, start), end in zip(heads, ends, strict=False):
            text = _REPEATED.sub("", _COLOUR.sub("", line[head.end() : end])).strip()
            yield _Text(host, head["pid"], head["level"], text, _printable(line[start:end]))

    def _host_of(self, text: str, pid: str) -> str:
        """The host in a text that may begin with the end of what another process wrote: `-1node-7`."""
        for host, pids in self._processes.items() if text not in self._processes else ():
            rest = text.removesuffix(host)
            if rest != text and (pid in pids or not _NAME.match(rest)):
                return host
        return text

    @property
    def unread(self) -> int:
        """Number of damaged lines."""
        return sum(own.unread for own in self._hosts.values())

    def logs(self) -> dict[str, NcclLog]:
        """The facts by host. Ranks that share a node are known at the end."""
        places = _Places({key: comm for own in self._hosts.values() for key, comm in own.comms.items()})
        return {host: own.log(places, len(self._hosts), self._version) for host, own in self._hosts.items()}


class _HostLines:
    """The facts of a host that were read so far."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.count = self.unread = 0
        self._unread_line = ""
        self._links: dict[tuple[NcclProcess, int, int, str], tuple[re.Match[str], str]] = {}
        self.comms: dict[tuple[NcclProcess, str, int, int], dict[str, str]] = {}
        self._facts: dict[str, Fact] = {}
        self._sizes: dict[str, int] = {}
        self._algorithms: dict[str, Fact] = {}
        self._variables: dict[str, Fact] = {}
        self._warnings: dict[str, None] = {}

    def refuse(self, line: str) -> bool:
        """Count a damaged line; false, as it has no fact."""
        self.unread += 1
        self._unread_line = self._unread_line or _printable(line)
        return False

    def take(self, message: _Text) -> bool:
        """Read a message; true if it has a new fact."""
        text, line = message.text, message.line
        if message.level == "WARN" and len(self._warnings) < _MOST_WARNINGS:
            self._warnings.setdefault(line)
        news = False
        if match := _CHANNEL.match(text) or _COLLNET.match(text):
            news = self._take_link(match, message)
        elif "omm 0x" in text and (match := _COMM.search(text)):
            news = self._take_comm(match, message)
        elif name := next((name for name, words in _FACTS.items() if _has(words, message)), None):
            news = _add(self._facts, name, Fact(text, line))
        elif match := _VARIABLE.match(text):
            news = _add(self._variables, match["name"], Fact(match["value"], line))
        elif match := _ALGORITHM.match(text):
            news = self._take_algorithm(match, line)
        elif numbers := list(_numbers(text)):
            news = max([self._keep(name, value, line) for name, value in numbers])
        elif text.startswith(_READ) and not _ORDER.match(text) and (" via " in text or not text.startswith(_OTHERS)):
            news = self.refuse(line)
        return news

    def _take_link(self, match: re.Match[str], message: _Text) -> bool:
        via = _VIA.match(match["via"])
        if via is None:
            return self.refuse(message.line)
        ends = ("rank", "rank") if match.re is _COLLNET else ("sender", "receiver")
        key = ((self._host, message.pid), int(match[ends[0]]), int(match[ends[1]]), via[0])
        return _add(self._links, key, (via, message.line))

    def _take_comm(self, match: re.Match[str], message: _Text) -> bool:
        key = ((self._host, message.pid), match["comm"], int(match["rank"]), int(match["ranks"]))
        known = self.comms.setdefault(key, {})
        new = {name: value for name, value in match.groupdict().items() if value is not None and name not in known}
        known.update(new)
        if "nodes" in new or "line" not in known:
            known["line"] = message.line
        return bool(new)

    def _take_algorithm(self, match: re.Match[str], line: str) -> bool:
        size, what = int(match["size"]), match["what"] or _ANY
        if size <= self._sizes.get(what, -1):
            return False
        self._sizes[what] = size
        value = f"{_named(match['algo'], _ALGORITHMS)}/{_named(match['proto'], _PROTOCOLS)}"
        self._algorithms[what] = Fact(value, line)
        return True

    def _keep(self, name: str, value: str, line: str) -> bool:
        """Keep the smallest number of all ranks, `no` rather than `yes`, and the most NICs. True if it is this one."""
        known = self._facts.get(name)
        if known is not None:
            old, new = ((len(text), text) for text in (known.value, value))
            if new == old or (new > old) != (name == "nics"):  # a plugin lists NICs, and then what it merged
                return False
        self._facts[name] = Fact(value, line)
        return True

    def log(self, places: "_Places", hosts: int, version: str | None) -> NcclLog:
        """The facts; `hosts` is the number of all hosts."""
        links = tuple(
            NcclLink(
                kind=_kind_of(via), via="SHM" if via["shm"] else via[0], sender=sender, receiver=receiver,
                within=places.within(process, sender, receiver), network=via["name"], gdr=via["gdr"] is not None,
                line=line,
            )
            for (process, sender, receiver, _), (via, line) in self._links.items()
        )  # fmt: skip
        comms = tuple(
            NcclComm(
                rank=rank, ranks=ranks, nodes=int(known["nodes"]) if "nodes" in known else None,
                mnnvl=known["mnnvl"] != "0" if "mnnvl" in known else None, line=known["line"],
            )
            for (_, _, rank, ranks), known in self.comms.items()
        )  # fmt: skip
        return NcclLog(
            lines=self.count, unread=self.unread, unread_line=self._unread_line, version=version, links=links,
            comms=comms, nodes=max((comm.nodes for comm in comms if comm.nodes is not None), default=hosts),
            facts=self._facts, algorithms=self._algorithms, variables=self._variables, warnings=tuple(self._warnings),
        )  # fmt: skip


def _has(words: re.Pattern[str], message: _Text) -> bool:
    return bool(words.match(message.text) or (message.level == "WARN" and words.search(message.text)))


def _numbers(text: str) -> Iterator[tuple[str, str]]:
    """Yield the facts of a message that may differ between ranks: name and value."""
    if match := _CHANNELS.match(text):
        yield from ((f"{name}_channels", match[name]) for name in ("coll", "nvls") if match[name])
    elif match := _NVLS.match(text):
        yield "nvls", "no" if match["no"] else "yes"
    elif match := _CLIQUE.match(text):
        yield "clique", match["size"]
    elif nics := {name for name, _ in _NIC.findall(text)} if " : Using [" in text else set():
        yield "nics", str(len(nics))
    elif match := _OFI.search(text):
        yield "nics", "0" if "tcp" in match["name"] else str(int(match["count"]))


class _Places:
    """The NVLink domain of ranks, by the lines of communicators."""

    def __init__(self, comms: Mapping[tuple[NcclProcess, str, int, int], Mapping[str, str]]) -> None:
        self._of_process: dict[NcclProcess, list[tuple[int, int, int | None, str]]] = {}
        self._hosts: dict[str, dict[int, set[str]]] = {}
        for (process, _, rank, ranks), known in comms.items():
            group = known.get("id", f"{ranks} ranks")
            nodes = int(known["nodes"]) if "nodes" in known else None
            self._of_process.setdefault(process, []).append((rank, ranks, nodes, group))
            self._hosts.setdefault(group, {}).setdefault(rank, set()).add(process[0])

    def within(self, process: NcclProcess, sender: int, receiver: int) -> bool | None:
        """Whether two ranks of a communicator of this process share a domain; None where communicators differ."""
        results = {
            self._share(nodes, group, ranks, sender, receiver)
            for rank, ranks, nodes, group in self._of_process.get(process, ())
            if rank in {sender, receiver} and max(sender, receiver) < ranks
        }
        return results.pop() if len(results) == 1 else None

    def _share(self, nodes: int | None, group: str, ranks: int, sender: int, receiver: int) -> bool | None:
        if nodes == 1:
            return True
        hosts = self._hosts[group]
        if len(hosts) < ranks or any(len(own) != 1 for own in hosts.values()):
            return None
        # NCCL counts other nodes than there are hosts where NVLink joins hosts, and where variables divide a host.
        if nodes is not None and len(set.union(*hosts.values())) != nodes:
            return None
        return hosts[sender] == hosts[receiver]


def _kind_of(via: re.Match[str]) -> LinkKind:
    if via["p2p"] or via["shm"]:
        return "P2P" if via["p2p"] else "SHM"
    return "COLLNET" if via[0].startswith("COLL") else "NET"


def _printable(line: str) -> str:
    text = line.strip()[:_LONGEST]
    return text if text.isprintable() else "".join(character for character in text if character.isprintable())


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text.upper()


def _add(known: dict, key: object, value: object) -> bool:  # type: ignore[type-arg]
    return known.setdefault(key, value) is value
