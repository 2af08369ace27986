"""Mistakes in a server's configuration are refused, with a message that names what is allowed."""

import copy
from pathlib import Path
from typing import Any

import pytest

from surecast.errors import ConfigError
from surecast.runtime.addresses import show_address
from surecast.server.config import DATAGRAM_MIN, DATAGRAM_ROOM, build, parse_address, witness_name
from surecast.server.settings import load_config

GOOD: dict[str, Any] = {
    "node": {"name": "east-1", "region": "east", "data_dir": "data"},
    "regions": {
        "east": {
            "replicas": {"east-1": "127.0.0.1:7400", "east-2": "127.0.0.1:7401"},
            "witness": "127.0.0.1:7402",
            "http": {"east-2": "127.0.0.1:7481"},
        },
        "west": {"replicas": {"west-1": "127.0.0.1:7410"}},
    },
    "owners": {"": "east", "orders.eu": "west"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with another value at this path, or without it if the value is None."""
    document = copy.deepcopy(GOOD)
    *above, last = path.split("/")
    at: Any = document
    for word in above:
        at = at.setdefault(word, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


def test_a_good_document_becomes_what_the_layers_need() -> None:
    config = build(GOOD)
    assert config.name == "east-1"
    assert config.roles["chain"].service == "east/witness"
    assert config.roles["chain"].chain == "east"
    assert config.roles["chain"].replicas == 2
    streams = config.roles["streams"]
    assert (streams.region, streams.name, streams.chain) == ("east", "east-1", "east")
    assert streams.replicas == ("east-1", "east-2")
    assert streams.addresses == {"east-1": "127.0.0.1:7400", "east-2": "127.0.0.1:7401"}
    assert streams.http == {"east-1": "127.0.0.1:7480", "east-2": "127.0.0.1:7481"}
    sprinkler = config.roles["sprinkler"]
    assert (sprinkler.region, sprinkler.name) == ("east", "east-1")
    assert sprinkler.regions == {"east": ("east-1", "east-2"), "west": ("west-1",)}
    assert sprinkler.owners == {"": "east", "orders.eu": "west"}
    assert not config.has_witness_inside


def test_the_datagrams_of_a_role_fit_into_those_of_the_node() -> None:
    """Larger ones were dropped: readers of nakcast got no repair."""

    def of_role(runtime: int, token: str = "") -> int:
        document = changed("runtime/datagram_bytes_max", runtime)
        document["node"]["token"] = token
        size: int = build(document).roles["nakcast"].datagram_bytes_max
        return size

    assert of_role(8192 + DATAGRAM_ROOM) == 8192
    assert of_role(8192 + DATAGRAM_ROOM, token="x") == 8191
    assert of_role(1400) == 1400 - DATAGRAM_ROOM
    assert of_role(256) == DATAGRAM_MIN


def test_settings_reach_their_layers() -> None:
    document = {
        **GOOD,
        "chain": {"heartbeat_ns": "20ms"},
        "streams": {"compact_share": 0.5},
        "sprinkler": {"advertise_ns": "50ms", "mesh": {"fanout": 3}},
        "storage": {"sync": "none"},
    }
    config = build(document)
    assert config.roles["chain"].heartbeat_ns == 20_000_000
    assert config.roles["streams"].compact_share == 0.5
    assert config.roles["sprinkler"].advertise_ns == 50_000_000
    assert config.roles["sprinkler"].mesh.fanout == 3
    assert config.storage.sync == "none"


def test_a_witness_needs_no_name() -> None:
    document = changed("node", {"region": "east", "role": "witness", "data_dir": ""})
    config = build(document)
    assert config.is_witness
    assert config.name == witness_name("east")


def test_a_region_of_one_replica_runs_its_own_witness() -> None:
    document = changed("node", {"name": "west-1", "region": "west", "data_dir": ""})
    assert build(document).has_witness_inside


def test_one_region_owns_everything() -> None:
    regions = {"east": GOOD["regions"]["east"]}
    assert build({"node": GOOD["node"], "regions": regions}).owners == {"": "east"}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("nodes", {}, "unknown section [nodes]; did you mean [node]?"),
        ("node/htp", "x", "[node] unknown key 'htp'; did you mean 'http'?"),
        ("node/region", None, "[node] missing key 'region'"),
        ("node/data_dir", None, "[node] missing key 'data_dir'"),
        ("node/name", "", "a replica needs a name"),
        ("node/name", "east-3", "not a replica of [regions.east], which lists east-1, east-2"),
        ("node/region", "south", "no such region; [regions] has east, west"),
        ("node/role", "leader", "role = 'leader'"),
        ("node/listen", "7400", "listen = '7400': not an address; write \"host:port\""),
        ("node/listen", "127.0.0.1:99999", "not an address"),
        ("node/http", "localhost:x", "not an address"),
        ("node/listen", "0.0.0.0:7400", "set insecure = true"),
        ("node/http", "10.0.0.1:7480", "set insecure = true"),
        ("node", {"region": "east", "role": "witness", "name": "w", "data_dir": ""}, "leave the"),
        (
            "node",
            {"region": "west", "role": "witness", "data_dir": ""},
            "no address of its witness",
        ),
        (
            "node",
            {**GOOD["node"], "listen": "127.0.0.1:0", "record": "rec"},
            "a recording needs node.listen to name a port",
        ),
        ("regions", {}, "there are no [regions]"),
        ("regions/east/replicas", {}, "at least one replica"),
        ("regions/east/replicas", {"a b": "127.0.0.1:1"}, "replica name 'a b'"),
        ("regions/east/replicas", {"x@y": "127.0.0.1:1"}, "replica name 'x@y'"),
        ("regions/ea st", {"replicas": {"z": "127.0.0.1:1"}}, "region name 'ea st'"),
        ("regions/east/replicas/east-2", "nowhere", "not an address"),
        ("regions/east/replicas/east-2", "127.0.0.1:7400", "have the same address"),
        ("regions/east/witness", None, "2 replicas and no witness"),
        ("regions/east/witness", "x", "not an address"),
        ("regions/east/witness", "127.0.0.1:7401", "have the same address"),
        ("regions/east/http/zzz", "127.0.0.1:1", "http names 'zzz', which is not a replica here"),
        ("regions/east/leader", "x", "[regions.east] unknown key 'leader'"),
        ("regions/west/replicas", {"east-1": "127.0.0.1:9"}, "[regions.east] and [regions.west]"),
        ("owners", None, "[owners] needs a default"),
        ("owners/", None, "[owners] needs a default"),
        ("owners/x", "south", "no such region, only east, west"),
        ("owners/a..b", "east", "whole words"),
        ("owners/a.>", "east", "it needs no wildcard"),
        ("chain/name", "x", "[chain] name: this is a key of [node]"),
        ("chain/min_replicas", 3, "chain.min_replicas is 3"),
        ("chain/heartbeat_ns", "fast", "[chain] heartbeat_ns = 'fast': not a duration"),
        ("streams/replicas", "x", "[streams] unknown key 'replicas'"),
        ("sprinkler/region", "x", "[sprinkler] region: this is a key of [node]"),
        ("sprinkler/compact_share", 0.5, "[sprinkler] compact_share: this is a key of [streams]"),
        ("sprinkler/switching", "odd", "use 'production' or 'literal'"),
        ("sprinkler/mesh/fanout", 0, "[sprinkler.mesh] mesh.fanout is 0"),
        ("storage/sync", "maybe", "[storage] sync = 'maybe'"),
        ("http/connections_max", 0, "[http] connections_max = 0: above 0"),
        ("http/header_timeout_ns", "0s", "[http] header_timeout_ns = "),
        ("http/bodies_bytes_max", "1MiB", "at least body_bytes_max (4194304)"),
        ("runtime/connections_max", 0, "[runtime] connections_max = 0: above 0"),
        ("limits/frame_bytes_max", "1KiB", "[limits] frame_bytes_max"),
        ("log/level", "loud", "[log] level = 'loud'"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_reason(
    path: str, value: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(changed(path, value))
    assert words in str(caught.value)


def test_insecure_allows_any_listen_address() -> None:
    document = changed("node/listen", "0.0.0.0:7400")
    document["node"]["insecure"] = True
    assert build(document).node.listen == "0.0.0.0:7400"


@pytest.mark.parametrize("text", ["127.0.0.1:7400", "[::1]:7400", "example.org:1"])
def test_addresses_are_shown_as_they_were_parsed(text: str) -> None:
    assert show_address(parse_address(text)) == text


# ---------------------------------------------------------------- file, environment, flags

FILE = """
[node]
name = "east-1"
region = "east"
data_dir = ""
http = "127.0.0.1:1000"
[regions.east]
replicas = { "east-1" = "127.0.0.1:7400" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    return path


def test_the_environment_wins_over_the_file_and_flags_over_both(path: Path) -> None:
    environ = {
        "SURECAST_NODE__HTTP": "127.0.0.1:2000",
        "SURECAST_LOG__LEVEL": "debug",
        "SURECAST_URL": "surecast://is-not-ours",
        "OTHER__THING": "x",
    }
    assert load_config(path, (), {}).node.http == "127.0.0.1:1000"
    config = load_config(path, (), environ)
    assert (config.node.http, config.log.level) == ("127.0.0.1:2000", "debug")
    config = load_config(path, ["node.http=127.0.0.1:3000"], environ)
    assert config.node.http == "127.0.0.1:3000"


def test_flags_are_toml_with_optional_quotes(path: Path) -> None:
    flags = [
        "node.insecure=true",
        'node.http="127.0.0.1:5"',
        "runtime.connect_timeout_ns=250ms",
        "http.connections_max=7",
        'owners.""=east',
        'owners."orders.eu"=east',
        "node.token=12345",
    ]
    config = load_config(path, flags, {})
    assert config.node.insecure is True
    assert config.node.http == "127.0.0.1:5"
    assert config.runtime.connect_timeout_ns == 250_000_000
    assert config.http.connections_max == 7
    assert config.owners == {"": "east", "orders.eu": "east"}
    assert config.node.token == "12345"  # a string, because the field is one


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (["node.http"], {}, "write SECTION.KEY=VALUE"),
        (["=3"], {}, "write SECTION.KEY=VALUE"),
        (["node.htp=3"], {}, "(with --set node.htp): [node] unknown key"),
        ([], {"SURECAST_NODE__HTP": "3"}, "(with SURECAST_NODE__HTP): [node] unknown key"),
        ([], {"SURECAST_NODES__HTTP": "3"}, "unknown section [nodes]"),
        (["http.connections_max=many"], {}, "[http] connections_max = 'many'"),
    ],
)
def test_errors_name_the_flag_or_variable_of_the_value(
    path: Path, flags: list[str], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path, flags, environ)
    assert words in str(caught.value)


def test_a_missing_file_and_a_file_that_is_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`surecast up` writes some"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[node\n")
    with pytest.raises(ConfigError, match=r"broken.toml: configuration is not valid TOML"):
        load_config(broken)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("streams", "compact_share", 7),
        ("streams", "serves_per_step", 0),
        ("streams", "expire_ns", 0),
        ("sprinkler", "advertise_ns", 0),
    ],
)
def test_values_that_would_stop_a_server_are_refused(section: str, key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} is {value}"):
        build(changed(f"{section}/{key}", value))
