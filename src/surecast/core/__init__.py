"""What every machine and driver shares: the vocabulary, the wire format, configuration.

All protocols use the same inputs and effects, put the same frames on the wire and into the log, and
read their parameters in the same way. Nothing in this package does IO.

- `types`: inputs, effects, the base of all messages, the interfaces a driver must offer.
- `machine`, `compose`: the base class of most machines; machines made of layers, and the part of
  the disk that a layer may read.
- `states`, `sessions`: state tables and their checks; the states of a session with a peer.
- `replicated`, `streams`, `endpoint`: the interfaces of the chain layer, of the stream service, and
  of the client side of a delivery.
- `roles`, `status`: what a protocol adds to a region's replica, and how it reports its status.
- `disk`, `fragments`: reading a log in bounded pieces; sending large state in parts.
- `names`, `policies`: stream names and patterns; retention policies as text.
- `wire`: frames and control messages, bytes to objects and back, with limits and checksums.
- `fields`: the types inside the declared type of a field.
- `canon`, `record`, `recording`: the inputs and effects of a machine, as bytes in a file.
- `config`: TOML to typed configuration, with errors a person can act on.
"""
