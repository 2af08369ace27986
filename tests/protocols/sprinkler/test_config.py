"""Invalid settings are refused by name, and presets have the values of the paper."""

from typing import Any

import pytest

from surecast.errors import ConfigError
from surecast.protocols.sprinkler.config import (
    ClientConfig,
    MeshConfig,
    bulk_mesh,
    paper,
    paper_mesh,
)


@pytest.mark.parametrize(
    "options",
    [
        {"view_max": 0},
        {"fanout": 0},
        {"server_fanout": 0},  # no client would ever be notified
        {"server_every": 0},
        {"shuffle_ns": 0},
        {"gossip_ns": -1},
        {"fanout": 21},
    ],
)
def test_a_mesh_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    (key,) = options
    with pytest.raises(ConfigError, match=f"mesh.{key} is"):
        MeshConfig(**options)


def test_a_client_without_servers_or_with_itself_as_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicas is empty"):
        ClientConfig("c", ())
    with pytest.raises(ConfigError, match="name of a replica"):
        ClientConfig("c", ("s", "c"))


def test_with_the_paper_preset_servers_notify_as_many_peers_as_clients_do() -> None:
    assert paper_mesh(fanout=7).server_fanout == 7
    assert paper_mesh(fanout=7, server_fanout=2).server_fanout == 2
    assert not paper_mesh().mutual
    assert paper("r", "r/0", {"r": ("r/0",)}).mesh == paper_mesh()


def test_the_bulk_preset_notifies_few_peers() -> None:
    assert (bulk_mesh().fanout, bulk_mesh().server_fanout) == (2, 1)
    assert bulk_mesh(fanout=3).fanout == 3


@pytest.mark.parametrize("key", ["early_bytes_max", "reply_bytes_max", "asks_max"])
def test_a_client_config_with_an_empty_buffer_is_refused(key: str) -> None:
    options: dict[str, Any] = {key: 0}
    with pytest.raises(ConfigError, match=f"client.{key} is 0"):
        ClientConfig("c", ("s",), **options)
