"""The Python API: the objects of `surecast.connect`, `surecast.local` and `surecast.sync`.

The connection to a region is an `Endpoint` (`surecast.endpoint`), which the HTTP port of a server
also uses. The files here add the public API, subscriptions and time-outs to it.

connection.py           Client: the connection to a region, which opens streams and subscriptions
stream.py               Stream: publish, publish_soon, publish_many, collect, subscribe
publisher_id.py         from the name of a publisher to its 16-byte id
subscription.py         Subscription, the iterator for users
subscription_task.py    how a subscription begins, finds its streams and ends
subscription_buffer.py  the batches that a subscription has received and the user has not read
stream_progress.py      the progress of a subscription in one stream
cursor.py               the stored positions of a named subscription
timeouts.py             the argument timeout= of the calls
events.py               Event, Seqs; from batches to events
arrow.py                from batches to Arrow record batches
table.py                from batches to one Arrow table, for Stream.read
rules.py                keep_all(), latest_per_key(), before_seq() …
sync.py                 the same API without await
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from surecast.client.connection import Client
from surecast.client.timeouts import Timeout
from surecast.endpoint.options import ClientOptions

__all__ = ["connect", "local"]


def connect(
    url: str = "surecast://127.0.0.1:7400",
    *,
    token: str = "",
    mesh: bool = False,
    options: ClientOptions | None = None,
    timeout: Timeout = None,
) -> Client:
    """A client of the region at `url`, which may contain the addresses of several of its servers.

        async with surecast.connect("surecast://10.0.0.1:7400,10.0.0.2:7400") as client: ...
        client = await surecast.connect()  # and `await client.close()` at the end

    `token` is the servers' `node.token`. With `mesh=True` the subscriptions of this client exchange
    events with other clients of the region, so that thousands of clients cost the servers no more
    than a few. `timeout` limits the time for connecting, in seconds or as a timedelta, over all
    addresses together.
    """
    return Client(url, token=token, mesh=mesh, options=options, timeout=timeout)


def local(
    data_dir: str | Path | None = None,
    *,
    mesh: bool = False,
    options: ClientOptions | None = None,
    start: Literal["ask", "trust"] = "ask",
    timeout: Timeout = None,
) -> Client:
    """A client with a region of its own in this process, for tests and small programs. It needs no
    server.

        async with surecast.local() as client: ...

    With a `data_dir` the region keeps its streams in that folder for the next start. Without one
    they are lost at the end. A damaged folder raises StorageError, unless `start` is "trust": then
    the region continues with the data that can be read. `timeout` limits the time for the start of
    the region.
    """
    from surecast.server.local import LocalRegion

    folder = None if data_dir is None else Path(data_dir)
    region = LocalRegion(folder, start=start)
    return Client("", mesh=mesh, options=options, local=region, timeout=timeout)
