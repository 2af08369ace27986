"""Layouts of a deployment on one machine: the files are valid configurations and agree."""

import logging
import os
import socket
import stat
import tomllib
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from surecast.errors import UsageError
from surecast.server.cluster import Cluster, check_ports
from surecast.server.config import build
from surecast.server.layout import lay_out, plan
from surecast.server.logs import ALARM_OVER, TextFormatter
from tests.server.processes import free_base


@pytest.mark.parametrize(("regions", "replicas"), [(1, 1), (3, 2), (5, 1), (2, 3)])
def test_every_file_is_a_configuration_and_all_agree(
    tmp_path: Path, regions: int, replicas: int
) -> None:
    layout = plan(tmp_path, regions, replicas, 7400)
    layout.write()
    assert layout.nodes[0].listen == "127.0.0.1:7400"  # the default url of clients
    configs = {}
    for node in layout.nodes:
        document = tomllib.loads(node.config.read_text())
        config = configs[node.name] = build(document)
        assert config.name == node.name
        assert config.node.listen == node.listen
        assert config.node.http == node.http
        assert Path(config.node.data_dir).parent == tmp_path.absolute() / "data"
    assert len({tuple(c.owners.items()) for c in configs.values()}) == 1
    assert len({str(c.regions) for c in configs.values()}) == 1
    witnesses = regions if replicas > 1 else 0
    assert len(configs) == regions * replicas + witnesses
    places = [p for node in layout.nodes for p in (node.listen, node.http)]
    assert len(set(places)) == len(places)


def test_regions_reach_each_other_by_the_addresses_of_a_relay(tmp_path: Path) -> None:
    """Also: regions may differ in size, and without HTTP ports no file names one."""
    plain = lay_out(tmp_path, {"north": 2, "south": 1}, count(7400))
    layout = replace(plain, through={("south", "north-2"): "127.0.0.1:9999"})
    layout.write()
    reached = {}
    for node in layout.nodes:
        document = tomllib.loads(node.config.read_text())
        assert document == layout.document(node)
        reached[node.name] = build(document).regions["north"].replicas["north-2"]
        assert document["node"]["http"] == ""
        assert all("http" not in region for region in document["regions"].values())
    home = plain.of("north")[1].listen
    assert reached == {
        "north-1": home, "north-2": home, "north/witness": home, "south-1": "127.0.0.1:9999"
    }  # fmt: skip


def test_settings_are_sections_of_every_file(tmp_path: Path) -> None:
    settings = {
        "node": {"token": 'a "quoted" \\ word – 日本'},
        "streams": {"expire_ns": 5, "compact_share": 0.5},
        "sprinkler": {"mesh": {"fanout": 3}},
    }
    layout = lay_out(tmp_path, {"east": 2}, count(7400), count(7500), settings=settings)
    layout.write()
    for node in layout.nodes:
        document = tomllib.loads(node.config.read_text())
        assert document == layout.document(node)
        assert document["node"]["token"] == settings["node"]["token"]
        assert document["node"]["listen"] == node.listen
        assert document["streams"] == settings["streams"]
        assert document["sprinkler"] == settings["sprinkler"]


def test_every_node_needs_a_port(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="every node needs a port"):
        lay_out(tmp_path, {"east": 2}, [7400, 7401])


def test_regions_have_readable_names() -> None:
    assert plan(Path("x"), 5, 1, 7400).regions() == ["east", "west", "north", "r4", "r5"]


def test_ports_of_a_plan_are_valid_and_distinct() -> None:
    with pytest.raises(UsageError, match="lower --base-port"):
        plan(Path("x"), 3, 2, 65_500)
    many = plan(Path("x"), 16, 7, 7400)  # more nodes than ports between data and HTTP ports
    places = [p for node in many.nodes for p in (node.listen, node.http)]
    assert len(set(places)) == len(places)


def test_a_folder_with_data_of_another_layout_is_refused(tmp_path: Path) -> None:
    plan(tmp_path, 3, 2, 7400).write()
    plan(tmp_path, 3, 2, 8400).write()  # other ports are fine
    with pytest.raises(UsageError, match="Use another --dir, or remove"):
        plan(tmp_path, 2, 2, 7400).write()
    plan(tmp_path, 2, 2, 7400, in_memory=True).write()  # needs no data


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    base = free_base(90)
    layout = plan(tmp_path, 1, 2, base)
    check_ports(layout)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", base + 1))
            if kind is socket.SOCK_STREAM:
                taken.listen()
            with pytest.raises(UsageError, match=f"port {base + 1}, wanted for east-2, is in use"):
                check_ports(layout)


def test_files_and_folders_are_readable_only_for_their_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        layout = plan(tmp_path / "up", 1, 1, 7400)
        layout.write()
        node = layout.nodes[0]
        os.chmod(node.config, 0o644)  # as an earlier version created it
        os.chmod(node.config.parent, 0o755)
        layout.log(node).touch(0o644)
        layout.write()
        cluster = Cluster(layout)
        node.config.write_text("not a configuration")  # the process ends at once with a message
        cluster.start(node.name)
        cluster.running[node.name].wait()
    finally:
        os.umask(before)
    assert layout.log(node).stat().st_size
    for part in ("config", "logs", "data"):
        assert stat.S_IMODE((tmp_path / "up" / part).stat().st_mode) == 0o700
    for file in (node.config, layout.log(node)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_end_of_an_alarm_is_shown_if_the_alarm_was(tmp_path: Path) -> None:
    layout = plan(tmp_path, 1, 1, 7400)
    layout.write()
    (node,) = layout.nodes
    cluster = Cluster(layout)
    cluster._read[node.name] = 0  # as if it was started

    def logged(level: int, text: str) -> list[str]:
        """Append a line to the log, as a server does. Returns what `warnings` yields of it."""
        record = logging.LogRecord("surecast.server", level, "", 0, text, None, None)
        with layout.log(node).open("a") as file:
            file.write(TextFormatter().format(record) + "\n")
        return [line.split(maxsplit=2)[2] for line in cluster.warnings()]

    raised, over = (
        "east-1: disk-failing: it is full. Free space",
        f"east-1: {ALARM_OVER}disk-failing",
    )
    other = f"east-1: {ALARM_OVER}region-unreachable"
    assert logged(logging.WARNING, raised) == [raised]
    assert logged(logging.INFO, "east-1: ready") == []
    assert logged(logging.INFO, other) == []  # its beginning was not shown
    assert logged(logging.INFO, over) == [over]
    assert logged(logging.INFO, over) == []
    logged(logging.WARNING, raised)
    cluster.skip_warnings()
    assert logged(logging.INFO, over) == []
