"""Options of a writer: parsed values, and errors for invalid ones."""

from datetime import timedelta

import pytest

import surecast
from surecast.columns.rules import Policy
from surecast.errors import UsageError
from surecast.pipeline.sink_options import SinkOptions, parse


def test_the_defaults_of_a_writer() -> None:
    assert parse({}) == SinkOptions("surecast://127.0.0.1:7400", "", None, True, None, None)
    assert parse({}).staging == "_spark"


def test_option_names_are_case_insensitive_and_sparks_own_are_ignored() -> None:
    found = parse({"createstreams": "False", "STREAM": "orders.eu", "checkpointlocation": "/tmp"})
    assert (found.create, found.stream, found.staging) == (False, "orders.eu", "_spark.orders.eu")


def test_query_part_is_parsed() -> None:
    assert parse({"queryId": "q", "querypart": "-1..600"}).part == (-1, 600)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("keep_all", surecast.keep_all()),
        ("latest_per_key", surecast.latest_per_key()),
        ("keep_last:100", surecast.keep_last(100)),
        ("keep_for:1.5", surecast.keep_for(timedelta(seconds=1.5))),
        ("latest-per-key", surecast.latest_per_key()),
        ("keep-for:1h", surecast.keep_for(timedelta(hours=1))),
    ],
)
def test_retain_is_parsed(text: str, policy: Policy) -> None:
    assert parse({"retain": text}).retain == policy


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strem": "a"}, "unknown option strem: did you mean stream"),
        ({"url": "kafka://x"}, "option url: .*surecast://"),
        ({"url": "surecast://"}, "option url"),
        ({"stream": "a b"}, "option stream: 'a b' is not a valid stream name"),
        ({"stream": "orders.>"}, "option stream"),
        ({"stream": "_spark.orders"}, "option stream: .*begins with _"),
        ({"stream": "x" * 250}, "option stream: .* 248 characters"),
        ({"createStreams": "maybe"}, "option createStreams is true or false, not 'maybe'"),
        ({"retain": "keep_last"}, "option retain: 'keep_last' is not a .*Valid: keep-all, "),
        ({"retain": "keep_last:0"}, "option retain"),
        ({"retain": "keep_for:soon"}, "option retain"),
        ({"retain": "keep_all:1"}, "option retain"),
        ({"queryId": "a/b"}, "option queryId"),
        ({"queryId": ""}, "option queryId"),
        ({"queryId": "once-a-day"}, "option queryId: .*begin with once-"),
        ({"queryPart": "-1..5"}, "option queryPart needs a queryId"),
        ({"queryId": "q", "queryPart": "5..5"}, "option queryPart .* not '5..5'"),
        ({"queryId": "q", "queryPart": "5"}, "option queryPart"),
        ({"path": "/x"}, "option path: .*option\\('stream'"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse(options)
