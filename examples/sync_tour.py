"""A short tour of the API without asyncio: `python examples/sync_tour.py [url]`.

Without a url it runs a region inside the program; with a url it connects to that region.
"""

import sys
from itertools import islice

from surecast import sync

client = sync.local() if len(sys.argv) < 2 else sync.connect(sys.argv[1])
with client:
    stream = client.stream("tour.sync")
    first = stream.publish(b"first")
    for n in range(1000):
        stream.publish_soon(b"%d" % n)
    client.flush()
    for event in islice(stream.subscribe(start=first), 3):
        print(event.seq, event.value)
    subscription = stream.subscribe(start=first, stop="latest")
    print(next(subscription).value, "and", sum(1 for _ in subscription), "more")
