"""NCCL's lines as its versions print them: of healthy machines, and of those with one fault."""

from collections.abc import Iterable, Sequence

from pytest_llmbench.core.record.nccl import NcclLog
from pytest_llmbench.readers.nccl import NcclReader

HEAD = "{host}:{pid}:{pid} [{dev}] NCCL INFO {text}"


def nics(count: int, kind: str = "IB") -> str:
    return " ".join(f"[{number}]mlx5_{number}:1/{kind}" for number in range(count))


def lines(
    hosts: Sequence[str] = ("n0",),
    gpus: int = 4,
    *,
    inside: str = "P2P/CUMEM",
    between: str = "NET/IB/0/GDRDMA",
    nics_of: int = 8,
    nvls: str = "no",
    nvls_channels: int = 0,
    algorithm: str = "RING",
    mnnvl: int = 0,
    nodes: int | None = None,
    more: Sequence[str] = (),
) -> list[str]:
    """Lines of all ranks of one communicator, whose ring goes through all GPUs of a node and on to the next."""
    ranks, domains, made = len(hosts) * gpus, nodes or len(hosts), ["NCCL version 2.28.9+cuda13.0"]
    for rank in range(ranks):
        host, local = hosts[rank // gpus], rank % gpus
        following = (rank + 1) % ranks
        here = following // gpus == rank // gpus
        way = f"via {inside}" if here else f"[send] via {between}"
        texts = [
            f"NET/IB : Using {nics(nics_of)} [RO]; OOB eth0:10.0.0.1<0>" if nics_of else "NET/IB : No device found.",
            f"NVLS multicast support is {'not ' if nvls == 'no' else ''}available on dev {local}",
            f"comm 0x55d0 rank {rank} nRanks {ranks} nNodes {domains} localRanks 4 localRank {local} MNNVL {mnnvl}",
            f"Channel 00/02 :    {'   '.join(map(str, range(ranks)))}",
            f"24 coll channels, 24 collnet channels, {nvls_channels} nvls channels, 32 p2p channels, 32 per peer",
            f"ncclCommInitRank comm 0x55d0 rank {rank} nranks {ranks} cudaDev {local} commId 0x3af1 - Init COMPLETE",
            *(
                f"Channel {channel:02d}/0 : {rank}[{local}] -> {following}[{following % gpus}] {way}"
                for channel in (0, 1)
            ),
            f"AllReduce: 1073741824 Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..23}}",
            *more,
        ]
        made += [HEAD.format(host=host, pid=100 + rank, dev=local, text=text) for text in texts]
    return made


def read_nccl(text: Iterable[str]) -> dict[str, NcclLog]:
    """Read lines by the host that printed them."""
    reader = NcclReader()
    for line in text:
        reader.take(line)
    return reader.logs()
