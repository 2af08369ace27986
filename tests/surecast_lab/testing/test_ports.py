"""Free ports: workers get different ones, and ports in use are not handed out."""

import socket

import pytest

from surecast.errors import SurecastError
from surecast_lab.testing import ports
from surecast_lab.testing.ports import HOST, PORTS, block_of, free_base, free_ports


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> range:
    """Restrict the range of ports to ten, all of them free."""
    base = free_base(10)
    monkeypatch.setattr(ports, "PORTS", range(base, base + 10))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return range(base, base + 10)


def test_blocks_of_workers_do_not_overlap() -> None:
    blocks = [block_of(f"gw{number}") for number in range(ports.BLOCKS)]
    assert [port for block in blocks for port in block] == list(PORTS)
    assert {len(block) for block in blocks} == {2_500}
    assert block_of("") == PORTS


def test_a_worker_picks_from_its_own_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for worker in ("gw0", "gw3"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        assert set(free_ports(20)) < set(block_of(worker))
        base = free_base(20)
        assert {base, base + 19} < set(block_of(worker))


def test_ports_are_handed_out_in_turn(block: range) -> None:
    picked = [port for _ in range(5) for port in free_ports(2)]
    assert sorted(picked) == list(block)
    assert free_ports(1) == picked[:1]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_a_port_in_use_is_not_handed_out(block: range, kind: int) -> None:
    with socket.socket(type=kind) as taken:
        taken.bind((HOST, block[4]))
        assert sorted(free_ports(9)) == [port for port in block if port != block[4]]
        for _ in range(3):
            assert free_base(5) == block[5]
        with pytest.raises(SurecastError, match="no 10 free ports in"):
            free_ports(10)
        with pytest.raises(SurecastError, match="no 6 consecutive free ports"):
            free_base(6)
    assert free_base(10) == block[0]
