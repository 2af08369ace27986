"""Every row of the registry loads, and the loaded objects fit the row."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from surecast import registry
from surecast.core.endpoint import NEEDS, VERBS, Place
from surecast.core.machine import NodeContext
from surecast.core.roles import Deployment
from surecast.core.streams import StreamSpec
from surecast.core.types import Message, tag_of
from surecast.errors import ConfigError
from surecast.stacks import region_replica, replica_layers
from surecast.storage.memory import MemoryDisk
from tests.made_protocols import MadeDelivery, made_protocols

CTX = NodeContext("c", Random(1), MemoryDisk(), 1)
PLACE = Place("east", ("east/0",))
DEPLOYMENT = Deployment("east", "east/0", {"east": ("east/0",)}, "east/witness")


@pytest.mark.parametrize("name", registry.deliveries())
def test_deliveries_have_their_registered_name_and_make_machines(name: str) -> None:
    delivery = registry.delivery(name)
    assert delivery.name == name
    for mesh in (False, True):
        assert callable(registry.reader(name, CTX, replace(PLACE, mesh=mesh)).step)
    publisher = delivery.publisher(CTX, PLACE)
    layers: Any = registry.control(CTX, PLACE)
    assert (name in layers.layers) == (publisher is not None)


@pytest.mark.parametrize("name", registry.deliveries())
def test_deliveries_declare_known_needs_and_verbs(name: str) -> None:
    delivery = registry.delivery(name)
    assert "region" in delivery.needs <= NEEDS
    assert delivery.verbs <= VERBS
    assert delivery.acks[0] == "local"
    assert len(set(delivery.acks)) == len(delivery.acks)
    delivery.check(StreamSpec(delivery=name))


@pytest.mark.parametrize("name", ["publisher", "inquirer"])
def test_a_delivery_cannot_take_the_name_of_a_layer_of_the_control_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    with made_protocols(monkeypatch, tmp_path) as made:
        made.write("left", delivery=lambda: MadeDelivery(name))
        with pytest.raises(AssertionError, match="no delivery can be named"):
            registry.control(CTX, PLACE)


def test_a_control_node_and_a_range_reader_are_machines() -> None:
    assert callable(registry.control(CTX, PLACE).step)
    assert callable(registry.range_reader(CTX, PLACE).step)


def test_clients_know_every_delivery_of_servers() -> None:
    of_servers = {role.delivery for role in registry.roles().values()} - {""}
    assert of_servers == set(registry.deliveries())


def test_roles_of_deliveries_stand_above_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(reversed(registry.PROTOCOLS.items()))
    order = [name for name, row in rows.items() if row.role is not None]
    assert order.index("sprinkler") < order.index("streams")
    monkeypatch.setattr(registry, "PROTOCOLS", rows)
    found = registry.roles()
    delivers = [bool(role.delivery) for role in found.values()]
    assert delivers == sorted(delivers)
    assert [role.name for role in found.values()] == list(found)


def test_the_layers_of_a_replica_are_those_of_its_roles() -> None:
    made = region_replica(registry.configs(DEPLOYMENT), MemoryDisk(), Random(1))
    assert {name: type(layer) for name, layer in made.layers.items()} == replica_layers()
    assert list(made.layers)[:4] == ["chain", "streams", "cursors", "queries"]
    assert {"sprinkler", "sprinkler.mesh"} <= set(list(made.layers)[4:])


def test_a_class_replaces_the_layer_it_derives_from() -> None:
    kind = replica_layers()["queries"]
    other = type("Other", (kind,), {})
    made = region_replica(registry.configs(DEPLOYMENT), MemoryDisk(), Random(1), types=(other,))
    assert type(made.layers["queries"]) is other


def test_configurations_derive_from_the_deployment_and_options() -> None:
    found = registry.configs(DEPLOYMENT, {"chain": {"heartbeat_ns": 7}})
    assert list(found) == list(registry.roles())
    assert (found["chain"].service, found["chain"].heartbeat_ns) == ("east/witness", 7)
    with pytest.raises(ConfigError, match="no role pigeon; there are: chain, streams"):
        registry.configs(DEPLOYMENT, {"pigeon": {}})
    with pytest.raises(ConfigError, match="no role pigeon; this version of Surecast has: chain"):
        region_replica({**found, "pigeon": None}, MemoryDisk(), Random(1))


BAD_ROW = """
from surecast.core.endpoint import Place
from surecast.core.machine import NodeContext
from surecast.core.types import Machine
from surecast.registry import Protocol

class NoReader:
    name = "nothing"
    def publisher(self, ctx: NodeContext, place: Place) -> Machine: ...

Protocol(delivery=NoReader)

class NoObserver:
    name = "nothing"
    delivery = ""
    config: type = int

Protocol(role=NoObserver)
Protocol(witness=lambda: 7)
"""


@pytest.mark.slow
def test_mypy_refuses_a_row_that_does_not_fit(tmp_path: Path) -> None:
    from mypy import api

    (tmp_path / "row.py").write_text(BAD_ROW)
    out, _, _ = api.run([str(tmp_path / "row.py"), "--config-file", "pyproject.toml"])
    assert 'Argument "delivery" to "Protocol" has incompatible type' in out, out
    assert 'Argument "role" to "Protocol" has incompatible type' in out, out
    assert 'Argument "witness" to "Protocol" has incompatible type' in out, out


def test_message_types_are_all_messages_under_one_tag_each() -> None:
    types = registry.message_types()
    assert all(issubclass(one, Message) for one in types)
    assert len({tag_of(one) for one in types}) == len(types)
    modules = {one.__module__ for one in types}
    assert modules == {f"surecast.protocols.{name}.messages" for name in registry.PROTOCOLS}
    assert types == registry.message_types()


def test_a_tag_is_the_protocol_and_the_class_name() -> None:
    for one in registry.message_types():
        protocol = one.__module__.split(".")[2]
        assert tag_of(one) == f"{protocol}/{one.__name__}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class Ack(Message): pass", "its tag 'Ack' is not left's"),
        ("class Ack(Message, tag=tagged('right')): pass", "its tag 'right/Ack' is not left's"),
        (
            "class Base(Message, tag='left/Same'): pass\n"
            "class One(Base, tag='left/Same'): pass\nclass Two(Base, tag='left/Same'): pass",
            "have the tag 'left/Same'",
        ),
    ],
)
def test_tags_of_a_protocol_begin_with_its_name_and_are_unique(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, problem: str
) -> None:
    with made_protocols(monkeypatch, tmp_path) as made:
        made.write("left", messages=f"from surecast.core.types import Message, tagged\n{text}\n")
        with pytest.raises(AssertionError, match=problem):
            registry.message_types()


def test_all_messages_fit_one_codec() -> None:
    from surecast.core.wire import Codec

    Codec(registry.message_types())


def test_unknown_names_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="there are: broadcast"):
        registry.delivery("pigeon")
    with pytest.raises(ConfigError, match="no message 'streams/Pigeon'"):
        registry.message_type("streams/Pigeon")
