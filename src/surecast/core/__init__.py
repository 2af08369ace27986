"""What all machines (protocol state machines) and drivers share: interfaces, wire format, config.

A driver, either the simulator or the asyncio runtime, passes inputs to machines and performs the
effects they return. All protocols use the same inputs and effects, put the same frames on the wire
and into the log, and read their parameters in the same way. Nothing in this package does IO.

- `types`: inputs, effects, the base of all messages, the interfaces a driver must offer.
- `machine`, `compose`: the base class of most machines; machines made of layers, and the part of
  the disk that a layer may read.
- `states`, `sessions`: state tables and their checks; the states of a session with a peer.
- `replicated`, `streams`, `endpoint`: the interfaces of the chain layer, of the stream service, and
  of the client side of a delivery (the protocol that brings a stream's events to its readers).
- `roles`, `status`: what a protocol adds to a region's replica, and how it reports its status.
- `disk`, `fragments`: reading a log in bounded pieces; sending large state in parts.
- `names`, `policies`: stream names and patterns; retention policies as text.
- `wire`: the encoding of batches and messages as frames, with limits and checksums.
- `fields`: walks through the declared type of a field, including nested types.
- `canon`, `record`, `recording`: recordings of a machine's inputs and effects, for replays.
- `config`: reads TOML into typed configuration, with errors that say what to correct.
"""
