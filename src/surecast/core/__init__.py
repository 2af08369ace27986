"""What every machine and driver shares: the vocabulary, the wire format, configuration.

Protocols differ, but all of them speak in the same inputs and effects, put the same frames on the
wire and in the log, and read their parameters in the same way. That common ground is here, and
none of it does IO.

- `types`: inputs, effects, the base of all messages, the interfaces a driver must offer.
- `machine`, `stack`: the shape most machines share, and machines made of layers.
- `replicated`, `disk`: what a layer of replicated logs offers; reading a log through.
- `policies`: retention policies as text.
- `wire`: frames and control messages, bytes to objects and back, with limits and checksums.
- `fields`: what the declared type of a field is made of.
- `canon`, `record`, `recording`: what a machine was told and answered, as bytes in a file.
- `config`: TOML to typed configuration, with errors a person can act on.
"""
