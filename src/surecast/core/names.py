"""Names of streams: which are valid, which a pattern matches, and which region owns a name.

A name consists of tokens separated by dots: `orders.eu.paris`. In a pattern `*` stands for one
token and a last `>` for one or more.

A name whose first token begins with `_` is *internal*: a stream that serves another one, such as
`_spark.orders`, which holds rows that will become events of `orders`. Patterns such as `>` are
meant for the streams that users publish to. So a pattern whose first token is `*` or `>` matches no
internal stream.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

__all__ = [
    "NAME_LEN_MAX",
    "is_internal",
    "is_name",
    "is_pattern",
    "matches",
    "owner_of",
    "owners_digest",
]

NAME_LEN_MAX: Final = 255
_TOKEN: Final = re.compile(r"[A-Za-z0-9_~:@=+-]+")


def is_name(name: str) -> bool:
    """Whether a stream may have this name."""
    return len(name) <= NAME_LEN_MAX and all(map(_TOKEN.fullmatch, name.split(".")))


def is_internal(name: str) -> bool:
    """Whether a stream of this name serves another stream, and was not created by a user."""
    return name.startswith("_")


def is_pattern(pattern: str) -> bool:
    """Whether the text is a valid pattern of names; every valid name is one, too."""
    tokens = pattern.split(".")
    if tokens[-1] == ">":
        tokens.pop()
    return len(pattern) <= NAME_LEN_MAX and all(t == "*" or _TOKEN.fullmatch(t) for t in tokens)


def matches(pattern: str, name: str) -> bool:
    """Whether a valid pattern matches a valid name."""
    wanted, tokens = pattern.split("."), name.split(".")
    if is_internal(name) and wanted[0] in ("*", ">"):
        return False
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
    )


def owner_of(owners: Mapping[str, str], name: str, here: str) -> str:
    """The region that owns `name`: the entry in `owners` for its longest prefix of whole tokens.

    An internal stream without an entry of its own has the owner of the stream that it serves. If
    there is no entry, not even the default entry "", the owner is `here`: then each region owns the
    streams that are created in it.
    """
    tokens = name.split(".")
    for count in range(len(tokens), 0, -1):
        owner = owners.get(".".join(tokens[:count]))
        if owner is not None:
            return owner
    if is_internal(name) and len(tokens) > 1:
        return owner_of(owners, ".".join(tokens[1:]), here)
    return owners.get("", here)


def owners_digest(owners: dict[str, str]) -> bytes:
    """A digest with which regions compare their tables of owners; empty for an empty table."""
    if not owners:
        return b""
    lines = "\n".join(f"{prefix} {owners[prefix]}" for prefix in sorted(owners))
    return hashlib.blake2b(lines.encode(), digest_size=8).digest()
