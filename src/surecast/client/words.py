"""What those who build on the client need of the rooms beneath it, which they do not see.

The pipeline joins Spark to the client and knows nothing of protocols, servers or wires: names of
streams, what a stream is, how an address is written and how long a second is come from here.
"""

from surecast.core.types import SECOND
from surecast.protocols.sprinkler.messages import StreamInfo
from surecast.protocols.sprinkler.names import is_internal, is_name, is_pattern, matches
from surecast.runtime.book import Address, show_address

__all__ = [
    "SECOND",
    "Address",
    "StreamInfo",
    "is_internal",
    "is_name",
    "is_pattern",
    "matches",
    "show_address",
]
