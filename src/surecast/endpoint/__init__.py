"""What every program needs that speaks with a region: the client, a server's HTTP port, Spark.

An endpoint is made of *nodes*, the same that servers are made of. Their machines see to retries,
reconnects and failover, and come from `registry`; the files here see to bounds, order and waiting.

endpoint.py        Endpoint: a program's connection to a region
discovery.py       from a url to the names and addresses of a region's servers
handshake.py       the first contact with a server whose name is not known yet
region_link.py     where the servers are, and the nodes that speak with them
control.py         the node that publishes and asks, as results to wait for
publishers.py      events become batches, in order, within bounds
chunks.py          lists and tables cut into batches
readers.py         the nodes that read, each by one delivery
ranges.py          a node that reads ranges of positions
options.py         ClientOptions: every bound and every wait
error_messages.py  what refusals mean and what to do about them
http_get.py        questions to a server over HTTP
forking.py         in a forked child, every call says that the client is the parent's
"""
