"""Racks and switches of nodes by Slurm: `scontrol show topology`, `topology.conf` and `topology.yaml`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.yaml_files import read_yaml_value

_PAIR = re.compile(r"(\w+)=(\S*)", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_MOST_HOSTS = 100_000
LEAF, BLOCK = "leaf switch", "block"


def expand_hosts(hostlist: str) -> list[str]:
    """Expand Slurm's notation, such as `rack[1-2]n[01-18],login`.

    Raises ConfigError for any other text, and for too many nodes.
    """
    parts = [part for part in re.split(r",(?![^\[]*\])", hostlist) if part]
    return [host for part in parts for host in _expand(part)]


def _expand(name: str) -> Iterator[str]:
    head, bracket, rest = name.partition("[")
    inner, closing, tail = rest.partition("]")
    if not bracket:
        if "]" in name:
            raise ConfigError(f"{name!r} is not a list of nodes")
        yield name
        return
    ranges = [_RANGE.fullmatch(part) for part in inner.split(",")]
    if not closing or not all(ranges):
        raise ConfigError(f"{name!r} is not a list of nodes")
    tails = list(_expand(tail)) if tail else [""]
    for match in ranges:
        first, last = (match[1], match[2] or match[1]) if match else ("0", "0")
        if int(last) < int(first):
            raise ConfigError(f"{name!r} has a range that ends before it begins")
        if (int(last) - int(first)) * len(tails) > _MOST_HOSTS:
            raise ConfigError(f"{name!r} stands for more than {_MOST_HOSTS} nodes")
        for number in range(int(first), int(last) + 1):
            yield from (f"{head}{number:0{len(first)}d}{end}" for end in tails)


def read_topology(text: str) -> Places:
    """Read the output of `scontrol show topology`, or `topology.conf`; empty where it names none.

    Raises ConfigError if a list of nodes in it is damaged.
    """
    switches: dict[str, tuple[list[str], list[str]]] = {}
    blocks: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        fields = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        nodes, children = (expand_hosts(fields.get(key, "")) for key in ("nodes", "switches"))
        if "switchname" in fields:
            # scontrol lists all nodes below a switch; the file those that are plugged into it.
            switches[fields["switchname"]] = (nodes if not children else [], children)
        elif "blockname" in fields:
            blocks.append((BLOCK, fields["blockname"], nodes))
        elif "aggregatedblock" in fields:
            blocks.append(
                (f"group of {len(expand_hosts(fields['aggregatedblock']))} blocks", fields["aggregatedblock"], nodes)
            )
    levels: dict[str, dict[str, str]] = {}
    for level, name, nodes in blocks:
        levels.setdefault(level, {}).update(dict.fromkeys(nodes, name))
    return Places({**levels, **_read_tree(switches)})


def _read_tree(switches: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, dict[str, str]]:
    """Levels of a tree of switches by their nodes and child switches: leaves first."""
    levels: dict[str, dict[str, str]] = {}

    def visit(name: str, above: tuple[str, ...]) -> tuple[int, list[str]]:
        nodes, children = switches.get(name, ([], []))
        if name in above:
            raise ConfigError(f"switch {name} is below itself")
        below = [visit(child, (*above, name)) for child in children]
        height = max((height for height, _ in below), default=-1) + 1
        own = [*nodes, *(host for _, hosts in below for host in hosts)]
        levels.setdefault(LEAF if height == 0 else f"switch of level {height}", {}).update(dict.fromkeys(own, name))
        return height, own

    children = {child for _, names in switches.values() for child in names}
    for name in switches:
        if name not in children:
            visit(name, ())
    return dict(sorted(levels.items(), key=lambda item: (item[0] != LEAF, item[0])))


def read_topology_file(content: Any) -> Places:
    """Read what `topology.yaml` holds: of several topologies the default one, else the first with any places.

    Raises ConfigError for any other form.
    """
    lines: list[str] = []
    try:
        for part in sorted(content, key=lambda part: part.get("cluster_default") is not True):
            lines += [
                f"SwitchName={row['switch']} Nodes={row.get('nodes') or ''} Switches={row.get('children') or ''}"
                for row in (part.get("tree") or {}).get("switches") or ()
            ]
            blocks = (part.get("block") or {}).get("blocks") or ()
            lines += [f"BlockName={row['block']} Nodes={row.get('nodes') or ''}" for row in blocks]
            if lines:
                break
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError("topology.yaml is not a list of topologies, each with switches or blocks") from error
    return read_topology("\n".join(lines))


def find_places(topology: Mapping[str, Mapping[str, str]] | str | None, ask: Callable[[], str]) -> Places:
    """Places by the system's file, which has them or names Slurm's file, else by `scontrol show topology`.

    Raises ConfigError if they are unreadable.
    """
    if topology is None:
        return read_topology(ask())
    if isinstance(topology, str):
        path = Path(topology)
        if path.suffix in {".yaml", ".yml"}:
            return read_topology_file(read_yaml_value(path))
        try:
            return read_topology(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
    return Places({
        level: {host: name for name, nodes in groups.items() for host in expand_hosts(nodes)}
        for level, groups in topology.items()
    })  # fmt: skip
