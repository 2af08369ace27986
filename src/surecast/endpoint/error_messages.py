"""Creates the errors that users get when a server refuses a request.

A refusal contains a short code, `why`. The error's message says what the code means and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from surecast.columns.schema import difference, extends, read_schema
from surecast.core.endpoint import Delivery, Opened
from surecast.core.policies import show_policy
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.errors import (
    Closed,
    Fenced,
    NotSupported,
    OwnerUnreachable,
    PublishError,
    StreamConfigMismatch,
    StreamDeleted,
    SubscriptionInUse,
    SurecastError,
    UnknownSubscription,
    UsageError,
)

__all__ = [
    "bad_name",
    "change_error",
    "check_change",
    "encode_hint",
    "not_supported",
    "only_at_owner",
    "open_error",
    "publish_error",
    "subscription_error",
    "unknown_delivery",
    "unknown_schema",
]

# Refusals of a publish: the message for each code, which follows the name of the stream.
_PUBLISH: Final = {
    "bad-event": "the stream refuses this event or collect(). Events must have the columns of the "
    "stream's schema, if it has one; tag_is needs a stream that keeps all events",
    "mismatch": "the region has another batch with the same publisher and number. Nothing was "
    "published; this is a bug: please report it, and publish again with a new client",
    "expired": "the region has forgotten this publisher, because it was silent for too long. Its "
    "unacknowledged events may have been published: check the stream, then publish again",
    "quarantined": "the stream's log is damaged in its region. Its operator must repair it; "
    "`surecast status` shows where",
    "unknown-columns": "the region has lost the change of the stream's schema that added the "
    "columns of these events. Open the stream again with client.stream(...)",
    "unknown-stream": "the stream does not exist any more. Open it again with client.stream(...)",
    "too-many-deleted": "the region keeps the ids of deleted streams, and has reached the limit "
    "(streams.deleted_max). Raise the limit, or keep the stream and collect its events",
    "history-lost": "the region has lost acknowledged events, by its operator's decision. "
    "Open the stream again with client.stream(...) and publish from a known state",
    "closed": "the client was closed before the events were acknowledged: they may have been "
    "published",
    "not-sent": "the client was closed while the events were waiting for room: they were not sent",
}
# Messages that differ for named publishers, which choose the numbers and the batches themselves.
_PUBLISH_NAMED: Final = {
    "mismatch": "this publisher has published other events with these numbers, or the same events "
    "in other batches. Nothing was published. Repeat the batches exactly as they were, or continue "
    "after the last number that was acknowledged",
    "history-lost": "the stream has not got the number before these events from this publisher. "
    "Numbers begin at 1 under a new name, and none may be left out. (Or the region has lost "
    "acknowledged events, by its operator's decision: then publish them again)",
}
# Codes after which the events may have been published nevertheless.
_MAYBE_TAKEN: Final = ("owner-unreachable", "expired", "history-lost", "closed")


def publish_error(stream: str, why: str, *, named: bool = False) -> PublishError:
    """The error for a publish to a stream, by a named publisher or not, that has failed with the
    code `why`."""
    if why == "owner-unreachable":
        return OwnerUnreachable(
            f"the region that owns {stream!r} cannot be reached, so it is not known whether it "
            "published the events. When it is reachable again, check the stream for them, or "
            "publish again if duplicates are harmless; `surecast status` shows the links",
            maybe_taken=True,
        )
    if why == "deleted":
        return StreamDeleted(stream)
    maybe_taken = why in _MAYBE_TAKEN
    messages = {**_PUBLISH, **_PUBLISH_NAMED} if named else _PUBLISH
    what = messages.get(why, f"the region refused it ({why}); `surecast status` may say more")
    failed = "no acknowledgement for events of" if maybe_taken else "not published to"
    return PublishError(f"{failed} {stream!r}: {what}", maybe_taken=maybe_taken)


def open_error(opened: Opened, spec: StreamSpec) -> SurecastError:
    """The error for a stream that could not be opened or created with `spec`."""
    name = opened.name
    match opened.why:
        case "config-mismatch":
            return _mismatch(name, opened.info, spec)
        case "owner-unreachable":
            return OwnerUnreachable(
                f"the region that owns {name!r} cannot be reached from this one. Try again when "
                "the link is back (`surecast status` shows it), or connect to the owner"
            )
        case "too-many-streams":
            return SurecastError(
                f"the region has reached its limit of streams (streams.streams_max); {name!r} was "
                "not created. Put events into fewer streams, with keys, or raise the limit"
            )
        case "bad-name":
            return UsageError(bad_name(name))
        case "bad-spec":
            return UsageError(
                f"the region refuses the schema or the options of {name!r}: together they may have "
                "about 4,000 characters, and the servers must know the types of the columns"
            )
        case "no-delivery":
            return NotSupported(
                f"some servers of the region do not know the delivery of {name!r}: upgrade them, "
                "then create the stream"
            )
        case "no-schemas":
            return NotSupported(
                f"some servers have an earlier version, which does not support schemas: upgrade "
                f"them, then create {name!r}"
            )
        case "other-region":
            return NotSupported(
                f"{name!r} belongs to another region ([owners]), and its delivery does not reach "
                "beyond one: connect to that region, or use a name that this one owns"
            )
        case "owners-differ":
            return SurecastError(
                f"the regions disagree on who owns {name!r}: their [owners] tables differ. Make "
                "them equal and restart the servers"
            )
    return SurecastError(f"stream {name!r} cannot be opened: {opened.why}")


def _mismatch(name: str, info: StreamInfo | None, spec: StreamSpec) -> StreamConfigMismatch:
    # The first argument that differs, its value in the stream, and the requested value.
    what, has, requested = "retain", "another rule", "the default"
    if spec.retention is not None:
        requested = show_policy(spec.retention)
    if info is not None:
        has = show_policy(info.retention)
        if spec.delivery not in ("", info.delivery):
            what, has, requested = "delivery", repr(info.delivery), repr(spec.delivery)
        elif spec.schema not in ("", info.schema):
            what, has, requested = "schema", repr(info.schema), repr(spec.schema)
            if not info.schema:
                has = "None (it was created without one)"
            elif extends(spec.schema, info.schema):
                return StreamConfigMismatch(
                    f"stream {name!r} has schema={has}, and the requested {requested} has more "
                    "fields: add them with `await stream.change(schema=...)` (or `surecast change "
                    f"{name} --schema ...`), then open it"
                )
            elif why := _why_not(info.schema, spec.schema):
                requested += f" ({why})"
        elif spec.options not in ((), info.options):
            what, has, requested = "options", str(dict(info.options)), str(dict(spec.options))
    return StreamConfigMismatch(
        f"stream {name!r} has {what}={has}, but {requested} was requested. Open it without {what}= "
        "to use it as it is, or use another name: these are fixed when a stream is created (fields "
        "can be added to a schema)"
    )


def _why_not(has: str, requested: str) -> str:
    """How a requested schema differs from that of the stream; "" if one of them cannot be read."""
    try:
        return difference(read_schema(has), read_schema(requested))
    except UsageError:
        return ""


def check_change(info: StreamInfo, schema: str) -> None:
    """Raise StreamConfigMismatch if the schema of a stream cannot be changed to this one."""
    name = info.name
    if not info.schema:
        raise StreamConfigMismatch(
            f"stream {name!r} was created without a schema, and cannot get one: create another "
            "stream, with schema="
        )
    if problem := difference(read_schema(info.schema), read_schema(schema)):
        raise StreamConfigMismatch(
            f"the schema of {name!r} cannot be changed: {problem}. A change adds nullable fields "
            f"at the end of the current schema, {info.schema!r}"
        )


def change_error(name: str, why: str) -> SurecastError:
    """The error for a change of a schema that was refused with the code `why`."""
    match why:
        case "schema-differs":
            return StreamConfigMismatch(
                f"the schema of {name!r} was changed by another client at the same time, and the "
                "requested one does not extend it: `surecast streams` shows it when it arrives here"
            )
        case "bad-spec":
            return UsageError(
                f"the schema of {name!r} would be too long: with the options it may have about "
                "4,000 characters"
            )
        case "no-schemas":
            return NotSupported(
                "some servers of the region that owns the stream have an earlier version, which "
                f"does not support schemas: upgrade them, then change the schema of {name!r}"
            )
        case "bad-event":
            return NotSupported(
                f"the region that owns {name!r} has a version that cannot change schemas: upgrade "
                "its servers"
            )
    return publish_error(name, why)


def not_supported(call: str, delivery: Delivery) -> NotSupported:
    """The error for a call or argument, such as "collect()", that a delivery does not support."""
    return NotSupported(f"{call} is not supported by delivery={delivery.name!r}")


def only_at_owner(call: str, info: StreamInfo) -> NotSupported:
    """The error for an argument that works only for clients of the region that owns the stream."""
    return NotSupported(
        f"{call} works only in the region that owns stream {info.name!r}, {info.owner!r}: with "
        f"delivery={info.delivery!r} other regions keep neither events nor positions. Connect to "
        "a server of that region"
    )


def unknown_schema(info: StreamInfo) -> NotSupported:
    return NotSupported(
        f"stream {info.name!r} has a schema that this version cannot read: upgrade the client"
    )


def unknown_delivery(info: StreamInfo) -> NotSupported:
    return NotSupported(
        f"stream {info.name!r} has delivery={info.delivery!r}, which this version does not know: "
        "upgrade the client"
    )


def bad_name(name: str) -> str:
    """The message of the error for an invalid stream name."""
    return (
        f"{name!r} is not a valid stream name: use tokens of letters, digits and _~:@=+- with dots "
        "between them, at most 255 characters, such as orders.eu"
    )


def encode_hint(what: str, data: object) -> str:
    """The end of the message that `data` is not bytes: what to do instead. `what` is "value", "key"
    or "tag"."""
    if isinstance(data, str):
        return f"; encode it, for example {what}.encode()"
    if isinstance(data, Mapping) and what == "value":
        return "; fields are for streams that were created with schema="
    return ""


def subscription_error(what: str, why: str) -> SurecastError:
    """The error for a refused query or request of a subscription. `what` is the name of the
    subscription or stream, or the pattern."""
    match why:
        case "fenced":
            return Fenced(
                f"the subscription named {what!r} was opened elsewhere and continues there. Two "
                "readers cannot share a name: stop one, or give this one another name"
            )
        case "reset" | "deleted":
            return Fenced(
                f"the subscription named {what!r} was {why} while this reader held it. Its last "
                "acknowledgements may be lost. Open it again to read from its current position"
            )
        case "in-use":
            return SubscriptionInUse(
                f"a client reads under the name {what!r}, so the subscription was not changed. "
                "Close that reader first, or use force: then it gets Fenced"
            )
        case "too-many-positions":
            return UsageError(
                f"{what!r} has more streams than the region resets at a time "
                "(streams.cursors_reset_max): reset some of them at a time"
            )
        case "unknown-subscription":
            return UnknownSubscription(f"the region has no subscription named {what!r}")
        case "too-many":
            return SurecastError(
                f"the region has reached its limit of subscriptions, so {what!r} was refused: "
                "close some, or use fewer names and patterns"
            )
        case "bad-name":
            return UsageError(f"{what!r} is not a name or pattern the region accepts")
        case "stream-deleted":
            return StreamDeleted(what)
        case "unknown-stream":
            return SurecastError(
                f"stream {what!r} does not exist any more. Open it again with client.stream(...)"
            )
        case "quarantined":
            return SurecastError(
                f"stream {what!r} is damaged in its region, so its next events are not known. Its "
                "operator must repair it (`surecast status` shows where); other regions may have "
                "it intact"
            )
        case "closed":
            return Closed("the client is closed")
    return SurecastError(f"subscription {what!r}: {why}")
