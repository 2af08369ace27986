"""A role defined by a test appears in everything a server reports; a missing role does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from surecast import registry
from surecast.columns.retention import KeepAll
from surecast.core.streams import Adopt, StreamInfo
from surecast.core.types import SECOND
from surecast.errors import ConfigError
from surecast.server.alarms import codes
from surecast.server.config import build, sections
from surecast.server.http import HttpPort
from surecast.server.nodes import build_replica, replica_args
from surecast.server.reference import page
from surecast.server.region import RegionServer
from surecast.server.status import look, not_ready
from surecast.stacks import replica_layers
from surecast_lab.swarm.cluster import Cluster
from tests.made_protocols import made_protocols
from tests.server.opened import Open, run, until

DOCUMENT: dict[str, Any] = {
    "node": {
        "name": "e-1", "region": "e", "data_dir": "",
        "listen": "127.0.0.1:0", "http": "127.0.0.1:0",
    },
    "regions": {"e": {"replicas": {"e-1": "127.0.0.1:0"}}},
}  # fmt: skip

MESSAGES = """
from surecast.core.types import Message, tagged


class Made(Message, tag=tagged("made")):
    pass
"""

ROLE = '''
from dataclasses import dataclass, field

from surecast.core.machine import HandlerMachine
from surecast.core.roles import Code, Metric
from surecast.core.streams import Create, Handed, StreamAdded
from surecast.core.types import PassDown


@dataclass(frozen=True, slots=True)
class Inner:
    """How the made role does it.

    More words.
    """

    depth_max: int = 3  # levels below the first


@dataclass(frozen=True, slots=True)
class Config:
    """What a test has made."""

    region: str
    alarm_at: int = 100  # streams that raise the alarm
    inner: Inner = field(default_factory=Inner)

    def summary(self):
        return [("the made role", f"alarms at {self.alarm_at}")]


class Layer(HandlerMachine):
    uses = ("streams",)
    from_below = {StreamAdded: "_on_added", Handed: "_on_handed"}

    def __init__(self, config, counters):
        super().__init__(counters)
        self.config = config
        self.names = []

    def _on_added(self, event):
        if event.info.delivery == "made-to-measure":
            self.names.append(event.info.name)

    def _on_handed(self, event):
        if event.what == "create":
            self.out.append(PassDown(Create(event.peer, event.message)))


class Observer:
    codes = {"too-many-made": Code("There are too many.", "Make fewer.", blocks=True)}

    def alarms(self, layers):
        layer = layers["made"]
        if len(layer.names) >= layer.config.alarm_at:
            yield "too-many-made", " ".join(layer.names)

    def status(self, layers):
        return {"names": layers["made"].names}

    def stream(self, layers, stream):
        return {"subscribers": 2, "recovering": True, "regions": {"far": 9}, "colour": "red"}

    def metrics(self, layers):
        for name in layers["made"].names:
            yield Metric("made_length", "length of a name", len(name), {"stream": name})


class Role:
    name = "made"
    delivery = "made-to-measure"
    keeps_copies = True
    config = Config
    layer_types = {"made": Layer}
    observer = Observer()

    def derived(self, deployment):
        return {"region": deployment.region}

    def layers(self, config, kit):
        return {"made": kit.kinds["made"](config, kit.counters)}
'''


@pytest.fixture
def _made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Add the row `made` to the registry."""
    with made_protocols(monkeypatch, tmp_path) as made:
        made.write("made", messages=MESSAGES, role=ROLE)
        yield


@pytest.fixture
def _without_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the rows of deliveries from the registry."""
    rows = {name: row for name, row in registry.PROTOCOLS.items() if row.delivery is None}
    monkeypatch.setattr(registry, "PROTOCOLS", rows)


def opened(**sections_of_roles: Any) -> Open:
    region = Open()
    region.server = RegionServer(build({**DOCUMENT, **sections_of_roles}))
    region.port = HttpPort(region.server)
    return region


# ------------------------------------------------------------ an additional role


@pytest.mark.usefixtures("_made")
def test_the_section_of_a_role_is_read_and_documented() -> None:
    found = build({**DOCUMENT, "made": {"alarm_at": 2, "inner": {"depth_max": 5}}}).roles["made"]
    assert (found.region, found.alarm_at, found.inner.depth_max) == ("e", 2, 5)
    assert build(DOCUMENT).roles["made"].alarm_at == 100
    text = page()
    assert "## `[made]`: what a test has made\n" in text
    assert "| `alarm_at` | `100` | streams that raise the alarm |" in text
    assert "## `[made.inner]`: how the made role does it\n" in text
    assert "| `depth_max` | `3` | levels below the first |" in text
    assert "| `too-many-made`, not ready | There are too many. | Make fewer. |" in text
    made = text[text.index("## `[made]`") : text.index("## `[storage]`")]
    assert "`region`" not in made
    assert "`inner`" not in made


@pytest.mark.usefixtures("_made")
@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"region": "w"}, r"\[made\] region: this is a key of \[node\]"),
        ({"alarm": 2}, r"\[made\] unknown key 'alarm'; did you mean 'alarm_at'"),
        ({"depth_max": 2}, r"\[made\] depth_max: this is a key of \[made.inner\]"),
        ({"inner": {"alarm_at": 2}}, r"\[made.inner\] alarm_at: this is a key of \[made\]"),
        ({"inner": {"depth": 2}}, r"\[made.inner\] unknown key 'depth'; did you mean 'depth_max'"),
    ],
)
def test_mistakes_in_the_section_of_a_role_are_refused(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build({**DOCUMENT, "made": table})


@pytest.mark.usefixtures("_made")
def test_a_check_of_the_configuration_shows_the_summary_of_the_role() -> None:
    from surecast.server.check import summary

    rows = summary(build({**DOCUMENT, "made": {"alarm_at": 2}}))
    assert ("the made role", "alarms at 2") in rows
    assert ("an ack means", "on disk at 1 or more of 1 replicas") in rows


@pytest.mark.usefixtures("_made")
def test_status_alarms_and_metrics_of_a_role_are_shown() -> None:
    async def main() -> None:
        async with opened(made={"alarm_at": 2}) as region:
            assert list(region.server.layers)[-1] == "made"
            assert (await region.get("/v1/status"))[1]["roles"]["made"] == {"names": []}
            for number in (1, 2):
                info = StreamInfo(
                    bytes([number]) * 16, f"s{number}", "e", KeepAll(), delivery="made-to-measure"
                )
                region.server.give(Adopt(info, made=True))
            await until(lambda: len(region.streams()) == 2)
            code, status = await region.get("/v1/status")
            assert code == 200
            assert status["roles"]["made"] == {"names": ["s1", "s2"]}
            assert ("too-many-made", "s1 s2", "There are too many.", "Make fewer.") in [
                (a["code"], a["what"], a["means"], a["todo"]) for a in status["alarms"]
            ]
            assert (await region.get("/readyz"))[0] == 503
            first = status["streams"][0]
            assert (first["name"], first["delivery"]) == ("s1", "made-to-measure")
            assert (first["subscribers"], first["recovering"]) == (2, True)
            assert (first["regions"], first["lag"]) == ({"e": 1, "far": 9}, 8)
            assert first["details"] == {"colour": "red"}
            found = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families((await region.get("/metrics"))[1])
                for sample in family.samples
            }
            assert found["surecast_made_length", "s2"] == 2
            assert found["surecast_alarms", "too-many-made"] == 1

    run(main)


@pytest.mark.usefixtures("_made")
def test_a_role_does_not_report_streams_of_another_delivery() -> None:
    async def main() -> None:
        async with opened() as region:
            assert (await region.post("/v1/streams/s/events", b"x"))[0] == 200
            code, one = await region.get("/v1/streams/s")
            assert (code, one["delivery"], one["details"]) == (200, "broadcast", {})
            assert (one["subscribers"], one["recovering"]) == (0, False)
            assert one["regions"] == {"e": 2}
            assert not not_ready(region.server)

    run(main)


@pytest.mark.usefixtures("_made")
def test_a_recording_names_the_configuration_of_every_role() -> None:
    config = build({**DOCUMENT, "made": {"alarm_at": 2}})
    args = json.loads(json.dumps(replica_args(config, config.deployment)))
    assert args["roles"]["made"] == {"region": "e", "alarm_at": 2, "inner": {"depth_max": 3}}
    assert set(args["roles"]) == set(registry.roles())


def test_a_recording_with_an_unknown_role_is_refused() -> None:
    config = build(DOCUMENT)
    args = replica_args(config, config.deployment)
    args["roles"]["made"] = {}
    with pytest.raises(
        ConfigError, match=r"has the role made, which this version .* does not have"
    ):
        build_replica(None, args)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_made")
def test_a_simulated_cluster_has_an_additional_role_and_its_options() -> None:
    cluster = Cluster(seed=1, regions={"e": 1}, server={"alarm_at": 5})
    cluster.world.run(until_ns=SECOND)
    layer = cluster.world.machine("e/0").layers["made"]
    assert (layer.config.region, layer.config.alarm_at) == ("e", 5)


# ------------------------------------------------------------ a missing role


@pytest.mark.usefixtures("_without_deliveries")
def test_a_server_without_a_delivery_runs_and_refuses_its_section() -> None:
    assert "sprinkler" not in replica_layers()
    assert "sprinkler.mesh" not in sections()
    assert "owners-differ" not in codes()
    with pytest.raises(ConfigError, match=r"unknown section \[sprinkler\]; .*Allowed: .*chain"):
        build({**DOCUMENT, "sprinkler": {"dead_after": 3}})
    server = RegionServer(build(DOCUMENT))

    async def main() -> None:
        await server.start()
        await until(lambda: not not_ready(server))
        status = look(server, 10)
        await server.drain()
        assert list(server.layers) == ["chain", "streams", "cursors", "queries"]
        assert (status.regions, status.roles) == ([], {})
        assert status.chain is not None
        assert status.chain.place == "alone"

    run(main)


@pytest.mark.usefixtures("_without_deliveries")
def test_a_stream_of_a_missing_delivery_is_refused() -> None:
    cluster = Cluster(seed=1, regions={"e": 1})
    cluster.open("s", "e", KeepAll())
    cluster.world.run(until_ns=5 * SECOND)
    assert [(event.name, event.info, event.why) for event in cluster.unopened] == [
        ("s", None, "no-delivery")
    ]
