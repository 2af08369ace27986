"""The connection of a program to a region, used by the client, a server's HTTP port and Spark.

An endpoint consists of *nodes*, as a server does. Their machines, which come from `registry`,
handle retries, reconnects and failover; the files here handle bounds, order and waiting.

endpoint.py        Endpoint: a program's connection to a region
discovery.py       the first contact: from a url to the names and addresses of the servers
region_link.py     the addresses of the servers, and the nodes connected to them
control.py         the node that publishes and sends queries, with results to await
publishers.py      events become batches, in order, within bounds
chunks.py          lists and tables cut into batches
readers.py         the nodes that read, one delivery each
ranges.py          a node that reads ranges of positions
subscriptions.py   lists, resets and deletes named subscriptions
options.py         ClientOptions: all bounds and time-outs
error_messages.py  the meaning of refusals, and what to do about them
http_get.py        HTTP requests to a server
forking.py         makes all calls of a client fail in a forked child
"""
