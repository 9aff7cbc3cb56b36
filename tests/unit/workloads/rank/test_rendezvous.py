"""How ranks meet; that two of them do is proven by the trainings."""

import dataclasses
from socket import AF_INET

import psutil
import pytest
import torch.distributed as dist

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import exchange_texts, open_store, process_group


def test_one_rank_meets_itself_on_a_free_port(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on a network of the machine."""
    before = listening()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with process_group(context) as device:
        assert {host for host, _ in listening() - before} == {"127.0.0.1"}
        assert exchange_texts('{"é": 1}', device) == ['{"é": 1}']
        assert exchange_texts("", device) == [""]
        assert device.type == "cpu"
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert not dist.is_initialized()


def test_a_missing_rank_0_is_named(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    other = dataclasses.replace(context, rank=1, world_size=2)
    message = r"rank 0 did not publish .*rendezvous\.json within 0\.1 s"
    with pytest.raises(RunError, match=message) as error, process_group(other, timeout_s=0.1):
        pytest.fail("there is nobody to meet")
    assert error.value.kind == "no_rendezvous"


def listening() -> set[tuple[str, int]]:
    """Address and port of each socket of this process that waits for others."""
    sockets = psutil.Process().net_connections("tcp")
    return {(socket.laddr[0], socket.laddr[1]) for socket in sockets if socket.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    ("resolved", "bound"),
    [("127.0.0.1", {"::", "0.0.0.0"}), ("192.0.2.1", {"::", "0.0.0.0"}), ("", set())],
    ids=["the machine itself", "not its address", "its address"],
)
def test_between_nodes_the_address_of_the_name_is_listened_at(
    context: RankContext, monkeypatch: pytest.MonkeyPatch, resolved: str, bound: set[str]
) -> None:
    """A name that resolves to no network of the machine is served on all of them, as other nodes may know it."""
    found = (each.address for nets in psutil.net_if_addrs().values() for each in nets if each.family == AF_INET)
    own = next((address for address in found if not address.startswith("127.")), None)
    if own is None and not resolved:
        pytest.skip("this machine has no network")
    monkeypatch.setattr("socket.gethostbyname", lambda _name: resolved or own)
    before = listening()
    store = open_store(dataclasses.replace(context, nodes=2, ranks_per_node=1), 30.0)
    (address,) = {host for host, _ in listening() - before}
    assert address in (bound if resolved else {own})
    store.set("key", "value")
