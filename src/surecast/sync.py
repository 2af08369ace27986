"""The public API without await: `surecast.sync.connect(url)`, `surecast.sync.local()`.

with surecast.sync.connect("surecast://127.0.0.1:7400") as client:
    stream = client.stream("orders.eu")
    stream.publish(b"42")
    for event in stream.subscribe(start="earliest"):
        print(event.seq, event.value)
"""

from surecast.client.sync import Client, Stream, Subscription, connect, local

__all__ = ["Client", "Stream", "Subscription", "connect", "local"]
