"""Names of streams: what is one, what a pattern matches, and which region owns it.

A name is made of tokens with dots between them: `orders.eu.paris`. In a pattern `*` stands for one
token and a last `>` for one or more.

A name whose first token begins with `_` is *internal*: a stream that serves another one, such as
`_spark.orders`, where rows wait that are to become events of `orders`. Whoever asks for `>` wants
what users publish, so a pattern finds internal streams only if it spells their first token out.
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
    return len(name) <= NAME_LEN_MAX and all(map(_TOKEN.fullmatch, name.split(".")))


def is_internal(name: str) -> bool:
    """Whether a stream of this name serves another one, and is none of the users' own."""
    return name.startswith("_")


def is_pattern(pattern: str) -> bool:
    """Whether it is a name or a pattern of names."""
    tokens = pattern.split(".")
    if tokens[-1] == ">":
        tokens.pop()
    return len(pattern) <= NAME_LEN_MAX and all(t == "*" or _TOKEN.fullmatch(t) for t in tokens)


def matches(pattern: str, name: str) -> bool:
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
    """The region that owns `name`: the entry of the longest prefix, in whole tokens.

    Without an entry (not even one for "") it is `here`: each region owns what is made in it. An
    internal stream without an entry of its own belongs where the stream that it serves does.
    """
    tokens = name.split(".")
    for count in range(len(tokens), 0, -1):
        found = owners.get(".".join(tokens[:count]))
        if found is not None:
            return found
    if is_internal(name) and len(tokens) > 1:
        return owner_of(owners, ".".join(tokens[1:]), here)
    return owners.get("", here)


def owners_digest(owners: dict[str, str]) -> bytes:
    """Equal for equal tables; empty for an empty one."""
    if not owners:
        return b""
    lines = "\n".join(f"{prefix} {owners[prefix]}" for prefix in sorted(owners))
    return hashlib.blake2b(lines.encode(), digest_size=8).digest()
