"""Options and offsets: accepted values, and errors with the name of the option."""

from __future__ import annotations

import pytest

from surecast.errors import UsageError
from surecast.pipeline.offsets import (
    At,
    Place,
    Time,
    places_from,
    places_to,
    share,
)
from surecast.pipeline.options import _NUMBER_MAX, COLUMNS, NAMES, parse

ORDERS = {"subscribe": "orders"}


def test_defaults_are_those_of_the_kafka_connector() -> None:
    batch = parse(ORDERS, streaming=False)
    assert (batch.start.of("orders"), batch.end.of("orders")) == (At(-2), At(-1))
    assert batch.fail_on_loss
    assert not batch.voids
    assert batch.files
    assert parse(ORDERS, streaming=True).start.of("orders") == At(-1)


def test_option_names_are_case_insensitive() -> None:
    given = {"SUBSCRIBE": "a,b ,a", "startingoffsets": "latest", "FailOnDataLoss": "FALSE"}
    found = parse(given, streaming=False)
    assert found.streams == ("a", "b")
    assert found.start.rest == At(-1)
    assert not found.fail_on_loss


def test_selected_columns_keep_the_order_of_the_schema() -> None:
    assert parse(ORDERS, streaming=False).columns == COLUMNS
    some = parse({**ORDERS, "columns": "value, Seq,key"}, streaming=False)
    assert some.columns == ("seq", "key", "value")


def test_offsets_are_parsed_by_stream() -> None:
    text = '{"orders": 12, "trades": "earliest", "cache": -1}'
    given = {"subscribe": "orders,trades,cache,rest", "startingOffsets": text}
    start = parse(given, streaming=False).start
    assert [start.of(name) for name in ("orders", "trades", "cache", "rest")] == [
        At(12), At(-2), At(-1), At(-2)
    ]  # fmt: skip
    given = {**ORDERS, "endingOffsets": '{"orders": 7}'}
    assert parse(given, streaming=False).end.of("orders") == At(7)


def test_timestamps_are_parsed() -> None:
    given = {**ORDERS, "startingTimestamp": "1700000000000"}
    assert parse(given, streaming=True).start.of("orders") == Time(1_700_000_000_000_000_000)
    given = {
        "subscribe": "orders,rest",
        "endingOffsetsByTimestamp": '{"orders": 1700000000000}',
    }
    end = parse(given, streaming=False).end
    assert end.of("orders") == Time(1_700_000_000_000_000_000)
    assert end.of("rest") == At(-1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, ["subscribe", "subscribePattern", "both"]),
        ({}, ["subscribe=", "subscribePattern="]),
        ({"subscribe": " , "}, ["subscribe", "empty"]),
        ({"subscribe": "a b"}, ["subscribe", "'a b'"]),
        ({"subscribe": "orders.*"}, ["subscribe", "subscribePattern"]),
        ({"subscribePattern": "a..b"}, ["subscribePattern", "'a..b'"]),
        ({**ORDERS, "url": "kafka://x"}, ["url", "surecast://"]),
        ({**ORDERS, "url": "surecast://x:y"}, ["url", "x:y"]),
        ({**ORDERS, "subscrib": "x"}, ["subscrib", "did you mean subscribe?"]),
        ({**ORDERS, "startingOffset": "x"}, ["startingOffset", "did you mean startingOffsets?"]),
        ({**ORDERS, "kafka.bootstrap.servers": "x"}, ["kafka.bootstrap.servers", "url="]),
        ({**ORDERS, "path": "/x"}, ["path", "subscribe"]),
        ({**ORDERS, "zzzzz": "1"}, ["zzzzz", *NAMES]),
        ({**ORDERS, "startingOffsets": "now"}, ["startingOffsets", "'now'", "earliest"]),
        ({**ORDERS, "startingOffsets": "{"}, ["startingOffsets", "JSON"]),
        ({**ORDERS, "startingOffsets": "{}"}, ["startingOffsets", "JSON"]),
        ({**ORDERS, "startingOffsets": '{"orders": {"0": 1}}'}, ["startingOffsets", "partitions"]),
        ({**ORDERS, "startingOffsets": '{"orders": 0}'}, ["startingOffsets", "begin at 1"]),
        ({**ORDERS, "startingOffsets": '{"orders": true}'}, ["startingOffsets", "True"]),
        ({**ORDERS, "startingOffsets": '{"orders": 1.5}'}, ["startingOffsets", "1.5"]),
        ({**ORDERS, "startingOffsets": '{"orders": NaN}'}, ["startingOffsets", "nan"]),
        ({**ORDERS, "startingOffsets": f'{{"orders": {10**24}}}'}, ["startingOffsets", "10000"]),
        ({**ORDERS, "startingOffsets": f'{{"orders": {1 << 59}}}'}, ["startingOffsets", "57646"]),
        ({**ORDERS, "startingOffsets": '{"orders": %s}' % ("9" * 5000)}, ["startingOffsets"]),
        ({**ORDERS, "endingOffsets": f'{{"orders": {10**24}}}'}, ["endingOffsets", "10000"]),
        ({**ORDERS, "startingTimestamp": str(10**24)}, ["startingTimestamp", "10000"]),
        ({**ORDERS, "startingTimestamp": "9" * 5000}, ["startingTimestamp"]),
        ({**ORDERS, "maxOffsetsPerTrigger": str(10**24)}, ["maxOffsetsPerTrigger", "10000"]),
        ({**ORDERS, "minPartitions": str(10**24)}, ["minPartitions", "10000"]),
        ({**ORDERS, "startingOffsets": '{"trades": 1}'}, ["startingOffsets", "trades", "orders"]),
        (
            {"subscribePattern": "orders.>", "startingOffsets": '{"order.eu": 40}'},
            ["startingOffsets", "'order.eu'", "subscribePattern", "orders.>"],
        ),
        ({**ORDERS, "endingOffsets": "earliest"}, ["endingOffsets", "latest"]),
        ({**ORDERS, "endingOffsets": '{"orders": "earliest"}'}, ["endingOffsets", "earliest"]),
        ({**ORDERS, "startingTimestamp": "today"}, ["startingTimestamp", "milliseconds"]),
        ({**ORDERS, "startingTimestamp": "-1"}, ["startingTimestamp", "milliseconds"]),
        (
            {**ORDERS, "startingOffsetsByTimestamp": '{"orders": "x"}'},
            ["startingOffsetsByTimestamp", "orders", "milliseconds"],
        ),
        (
            {**ORDERS, "startingTimestamp": "1", "startingOffsets": "latest"},
            ["startingTimestamp", "startingOffsets"],
        ),
        ({**ORDERS, "maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "'0'"]),
        ({**ORDERS, "minPartitions": "two"}, ["minPartitions", "'two'"]),
        ({**ORDERS, "failOnDataLoss": "maybe"}, ["failOnDataLoss", "true or false"]),
        ({**ORDERS, "includeVoids": "1"}, ["includeVoids", "true or false"]),
        ({**ORDERS, "segments": "always"}, ["segments", "auto or never"]),
        ({**ORDERS, "columns": "key,valeu"}, ["columns", "'valeu'", "value"]),
        ({**ORDERS, "columns": ""}, ["columns", "stream, seq"]),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_by_name(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse(given, streaming=False)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_options_are_refused_for_streaming_queries(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}.*availableNow"):
        parse({**ORDERS, name: "latest"}, streaming=True)


def test_a_place_survives_a_checkpoint() -> None:
    places = {"b": Place(bytes(range(16)), 5), "a": Place(bytes(16), 1 << 58)}
    written = places_to(places)
    assert list(written) == ["a", "b"]
    assert places_from(written) == places
    numbers = [0, -1, (1 << 59) + 1, 10**24, 1.0, True, float("inf"), "7", None]
    wrong = [{"a": {"id": "00" * 16, "next": number}} for number in numbers]
    for strange in (
        *wrong, {"0": 5}, {"a": {"id": "xyz", "next": 1}}, {"a": {"next": 1}}, {"a": None},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="checkpoint"):
            places_from(strange)


def test_numbers_fit_a_java_int() -> None:
    largest = parse({**ORDERS, "maxOffsetsPerTrigger": str(_NUMBER_MAX)}, streaming=True)
    assert largest.trigger_offsets_max == _NUMBER_MAX == 2**31 - 1
    with pytest.raises(UsageError, match="maxOffsetsPerTrigger"):
        parse({**ORDERS, "maxOffsetsPerTrigger": str(_NUMBER_MAX + 1)}, streaming=True)


def test_a_limit_is_shared_by_size() -> None:
    assert share({"a": 10, "b": 20}, 100) == {"a": 10, "b": 20}
    assert share({"a": 100, "b": 300, "c": 0}, 40) == {"a": 10, "b": 30, "c": 0}
    assert share({"a": 1_000_000, "b": 1}, 10) == {"a": 9, "b": 1}  # every stream gets a share
