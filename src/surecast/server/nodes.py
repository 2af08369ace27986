"""Builds the nodes of a server from its configuration: their machines, stores and address books.

A server can record the inputs of its machines (`node.record`), and `surecast replay` repeats them.
For that, the replay has to build the same machine. So machines are built from plain data by a
function in `BUILDS`; the recording contains the data and the function's name.
"""

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from surecast.core.machine import Factory, NodeContext
from surecast.core.roles import Deployment
from surecast.core.types import Machine, Peer
from surecast.core.wire import Codec
from surecast.errors import ConfigError, StorageError
from surecast.registry import message_types, roles, witness
from surecast.runtime.addresses import AddressBook, show_address
from surecast.runtime.node import Node
from surecast.runtime.recorder import Recorder, recording_path
from surecast.server.config import ServerConfig, parse_address, witness_name
from surecast.stacks import region_replica
from surecast.storage import modes
from surecast.storage.memory import MemoryDisk
from surecast.storage.segments import SegmentStore
from surecast.storage.store import MemoryStore, Store

__all__ = ["BUILDS", "open_store", "replica_node", "started", "witness_node"]


REPLICA: Final = "region-replica"
WITNESS: Final = "witness"


def build_replica(ctx: NodeContext, args: dict[str, Any]) -> Machine:
    """A region's replica; `args` comes from `replica_args`.

    It has exactly the roles named in `args`, so that a recording is replayed with the roles that it
    was made with, even if the registry has more roles now.
    """
    known = roles()
    if unknown := [name for name in args["roles"] if name not in known]:
        raise ConfigError(
            f"this replica has the role {', '.join(unknown)}, which this version of Surecast does "
            f"not have; it has: {', '.join(known)}"
        )
    configs = {
        name: msgspec.convert(data, known[name].config) for name, data in args["roles"].items()
    }
    return region_replica(configs, ctx.disk, ctx.rng, Counter())


def build_witness(ctx: NodeContext, args: dict[str, Any]) -> Machine:
    """A region's witness; `args` comes from `witness_args`."""
    return witness({args["region"]: tuple(args["replicas"])}, ctx.disk, Counter())


# The build functions, by their names in recordings.
BUILDS: Final[dict[str, Callable[[NodeContext, dict[str, Any]], Machine]]] = {
    REPLICA: build_replica,
    WITNESS: build_witness,
}


def replica_args(config: ServerConfig, deployment: Deployment) -> dict[str, Any]:
    """The configurations of all roles as plain data, for `build_replica`."""
    made = {
        name: replace(config.roles[name], **role.derived(deployment))
        for name, role in roles().items()
    }
    # "role": the kind of node; "roles": the roles that its machine consists of (`registry`).
    return {"role": "replica", "roles": msgspec.to_builtins(made)}


def witness_args(config: ServerConfig) -> dict[str, Any]:
    return {
        "role": "witness",
        "region": config.node.region,
        "replicas": list(config.region.replicas),
    }


def open_store(config: ServerConfig, part: str) -> Store:
    """The store of a node: the subfolder `part` of its data folder, or memory without one."""
    if not config.node.data_dir:
        return MemoryStore(MemoryDisk(config.storage.memory_bytes_max))
    folder = Path(config.node.data_dir) / part
    try:
        modes.make_folder(folder, config.storage.folder_mode)
    except OSError as problem:
        raise StorageError(
            f"cannot make the data folder {folder}: {problem.strerror}; fix that, or set "
            "node.data_dir to a folder that this user may write to"
        ) from problem
    return SegmentStore(folder, config.storage, limits=config.limits)


def replica_node(config: ServerConfig, inside: Node | None = None) -> Node:
    """The node of the replica that `config` describes. `inside` is the node of the witness if that
    runs in this process; it must be listening already."""
    store = open_store(config, "log")
    args = replica_args(config, config.deployment)

    def make(ctx: NodeContext) -> Machine:
        # Called by the node (below) when it starts; it is listening then.
        assert node.address is not None
        host, port = parse_address(config.region.replicas[config.name])
        if port:
            return build_replica(ctx, args)
        # The configured port is 0: clients are sent the port that the system has chosen.
        own = {config.name: show_address((host, node.address[1]))}
        addresses = {**config.deployment.addresses, **own}
        return build_replica(
            ctx, replica_args(config, replace(config.deployment, addresses=addresses))
        )

    node = _node(config, config.name, make, store, REPLICA, args, config.node.listen)
    if inside is not None:
        assert inside.address is not None
        node.book.set(inside.name, inside.address)
    return node


def witness_node(config: ServerConfig) -> Node:
    """The node of the region's witness. In a replica's process it listens on loopback, on any free
    port, because only that replica connects to it."""
    listen = config.node.listen if config.is_witness else "127.0.0.1:0"
    args = witness_args(config)
    store = open_store(config, "witness")
    name = witness_name(config.node.region)

    def make(ctx: NodeContext) -> Machine:
        return build_witness(ctx, args)

    return _node(config, name, make, store, WITNESS, args, listen)


async def started(node: Node) -> Node:
    """Start a node and return it; if that fails, close its store."""
    try:
        await node.start()
    except BaseException:
        node.store.close()
        raise
    return node


def _node(
    config: ServerConfig,
    name: Peer,
    factory: Factory,
    store: Store,
    build: str,
    args: dict[str, Any],
    listen: str,
) -> Node:
    """A node whose state machine `factory` builds. A replay builds it from `build`, the name of a
    function in BUILDS, and `args`."""
    codec = Codec(message_types(), config.limits)
    # The node's random numbers, such as ids of new streams, are drawn from this seed. So no two
    # starts may have the same.
    seed = secrets.token_hex(16)
    try:
        recorder = None
        if config.node.record:
            recorder = _recorder(config, name, store, build, args, codec, seed)
        return Node(
            name,
            factory,
            book=_book(config, name),
            codec=codec,
            listen=parse_address(listen),
            disk=store,
            seed=seed,
            region=config.node.region,
            role=args["role"],
            credential=config.node.token,
            limits=config.runtime,
            insecure=config.node.insecure,
            recorder=recorder,
        )
    except BaseException:
        store.close()
        raise


def _book(config: ServerConfig, me: Peer) -> AddressBook:
    """The addresses of all other nodes of the deployment."""
    book = AddressBook()
    for region, known in config.regions.items():
        places = {**known.replicas, witness_name(region): known.witness}
        for name, address in places.items():
            if address and name != me:
                book.set(name, parse_address(address))
    return book


def _recorder(
    config: ServerConfig,
    name: Peer,
    store: Store,
    build: str,
    args: dict[str, Any],
    codec: Codec,
    seed: str,
) -> Recorder:
    folder = Path(config.node.record)
    modes.make_folder(folder)
    path = recording_path(folder, name, store.incarnation)
    number = 1
    # The file's name contains the number of this start (`store.incarnation`), which is counted in
    # the data folder. If that folder was replaced by an older copy, a number is used again, and a
    # file of this name may exist.
    while path.exists():
        number += 1
        path = path.with_name(f"{path.stem.partition('~')[0]}~{number}.rec")
    return Recorder(
        path,
        node=name,
        build=build,
        args=args,
        seed=seed,
        incarnation=store.incarnation,
        codec=codec,
        disk=store.disk,
    )
