"""The connection of a program to a region, used by the client, a server's HTTP port and Spark.

An endpoint consists of *nodes*, as a server does. A node is a state machine with its sockets
(`runtime.node`). `registry` creates the state machines, which handle retries, reconnects and
failover. The files here let tasks wait for the results of the state machines, and limit how much a
program may have in progress.

endpoint.py        Endpoint: a program's connection to a region
discovery.py       the first contact: from a url to the names and addresses of the servers
region_link.py     the addresses of the servers, and the nodes connected to them
control.py         the node that publishes and sends queries; its results can be awaited
publishers.py      collects events into batches and publishes them in order, within bounds
prepared.py        lists and tables divided into batches, ready to be published
attributes.py      rows and tables checked against a stream's schema, and back to Python values
attributes_json.py the same values as JSON
readers.py         the nodes that read streams; each of them runs one delivery
ranges.py          a node that reads ranges of positions
subscriptions.py   lists, resets and deletes named subscriptions
options.py         ClientOptions: all bounds and time-outs
error_messages.py  the errors that users get when a server refuses a request
http_get.py        HTTP requests to a server
forking.py         makes all calls of a client fail in a forked child
"""
