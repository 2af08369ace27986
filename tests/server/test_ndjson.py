"""Events as lines of JSON."""

import json

import pytest

from surecast.endpoint.attributes import RowWriter, writer_of
from surecast.errors import UsageError
from surecast.server.ndjson import as_json, parse_line, parse_lines, parse_row


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        (b'{"key": "k", "value": "v"}', (b"k", b"v")),
        (b'{"value": "v", "tag": "t"}', (None, b"v", b"t")),
        (b'{"value": "v", "tag_base64": "AP8="}', (None, b"v", b"\x00\xff")),
        (b'{"value": "v"}', (None, b"v")),
        (b'{"key": "", "value": ""}', (b"", b"")),
        (b'{"key": "k"}', (b"k", b"")),
        (b'{"key": "k", "value": null}', (b"k", b"")),
        (b'{"value": {"a": [1, 2]}}', (None, b'{"a":[1,2]}')),
        (b'{"value": 7}', (None, b"7")),
        (b'{"key_base64": "AP8=", "value_base64": "/w=="}', (b"\x00\xff", b"\xff")),
        ('{"value": "ü"}'.encode(), (None, "ü".encode())),
        (b'{"stream": "s", "seq": 4, "kind": "event", "time": "x", "value": "v"}', (None, b"v")),
    ],
)
def test_lines_of_json_are_parsed_as_events(line: bytes, pair: tuple[bytes | None, ...]) -> None:
    assert parse_line(line) == (*pair, None)[:3]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"plain text", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"val": 1}', "unknown field 'val'; allowed: key,"),
        (b'{"key": 3}', "a key is text"),
        (b'{"key": "k", "key_base64": ""}', "both key and key_base64"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"value_base64": 3}', "value_base64 is not base64"),
        (b'{"kind": "void", "seq": 3}', "'void' cannot be published"),
        (b'{"value": "v", "attributes": {"n": 1}}', "for streams that were created with a schema"),
        (b'{"value": "v", "time": "x"}', "unknown field 'time'"),
        (b'{"tag": 3}', "a tag is text (or use tag_base64)"),
        (b"[" * 100_000, "not"),
        (b'{"key": "\xff"}', "not UTF-8; other bytes go into key_base64"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b'{"value": "\\ud800abcdef"}', "not JSON"),
    ],
)
def test_lines_that_are_not_events_are_refused(line: bytes, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(line)
    assert words in str(caught.value)


def test_the_error_names_the_wrong_line() -> None:
    with pytest.raises(UsageError, match="line 3: not JSON"):
        list(parse_lines([b'{"value": "a"}', b"", b"oops"], 1, parse_line))


@pytest.mark.parametrize("data", [b"", b"text", "ü\n\t".encode(), b"\x00\xff"])
def test_events_shown_as_json_can_be_published_again(data: bytes) -> None:
    line = json.dumps({**as_json("key", data), **as_json("value", data)}).encode()
    assert parse_line(line) == (data, data, None)


# ---------------------------------------------------------------- streams with a schema


@pytest.fixture(scope="module")
def writer() -> RowWriter:
    made = writer_of(
        "sym string not null, px float64, at timestamp, dec decimal(6, 2), blob binary, day date"
    )
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b'{"sym": "a", "px": 1}', {"sym": "a", "px": 1}),
        (b'{"attributes": {"sym": "a"}, "key": "k"}', {"sym": "a", "key": b"k"}),
        (b'{"attributes": {"sym": "a"}, "px": "NaN"}', {"sym": "a", "px": "nan"}),
        (b'{"sym": "a", "value_base64": "AP8="}', {"sym": "a", "value": b"\x00\xff"}),
        (b'{"sym": "a", "tag": "t", "seq": 7, "kind": "event"}', {"sym": "a", "tag": b"t"}),
        (b'{"sym": "a", "at": "1970-01-01T00:00:00.0000010000Z"}', {"sym": "a", "at": 1}),
    ],
)
def test_lines_with_fields_are_parsed_as_rows(
    line: bytes, row: dict[str, object], writer: RowWriter
) -> None:
    found = parse_row(line, writer)
    shown = dict(zip(writer.schema.names, found.fields, strict=True)) | {
        "key": found.key, "value": found.value, "tag": found.tag
    }  # fmt: skip
    shown = {k: str(v) if v != v else v for k, v in shown.items() if v not in (None, b"")}
    assert shown == row


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"px": 1}', "column 'sym' is string and not null, but the event has no value"),
        (b'{"sym": 1}', "column 'sym' is string, and the event has 1 (int)"),
        (b'{"sym": "a", "at": "2026-11-19T08:30:00"}', "it has no time zone"),
        (b'{"sym": "a", "at": "yesterday"}', "it is not a time such as 2026-11-19T08:30:00Z"),
        (b'{"sym": "a", "at": "1970-01-01T00:00:00.1234567Z"}', "more precise than the column"),
        (b'{"sym": "a", "at": "1970-01-01T00:00:00,1234567Z"}', "it is not a time such as"),
        (b'{"sym": "a", "at": "19700101T000000.1234567Z"}', "it is not a time such as"),
        (
            b'{"sym": "a", "dec": "' + b"1" * 4_000_000 + b'"}',
            "at most 100 characters",
        ),
        (b'{"sym": "a", "px": ' + b"1" * 300 + b"}", "it has too many digits"),
        (b'{"sym": "a", "at": 17}', "write dates and times as text, such as 2026-11-19T"),
        (b'{"sym": "a", "dec": 1.25}', 'write decimals as text, such as "1.25"'),
        (b'{"sym": "a", "dec": "x"}', "it is not a decimal number"),
        (
            b'{"sym": "a", "blob": "xx!"}',
            "column 'blob' is binary, and the event has 'xx!': it is",
        ),
        (b'{"sym": "a", "day": "today"}', "it is not a date such as 2026-11-19"),
        (b'{"sym": "a", "at": "1970-01-01T12:30.5Z"}', "it is not a time such as"),
        (b'{"sym": "a", "px": ' + str((1 << 1024) - 1).encode() + b"}", "out of range"),
        (b'{"sym": "a", "time": "x"}', "the schema has no column 'time'"),
        (b'{"sym": "a", "pxx": 1}', "the schema has no column 'pxx': did you mean 'px'?"),
        (b'{"sym": "a", "attributes": {"sym": "b"}}', "the field 'sym' is given twice"),
        (b'{"attributes": [1]}', "attributes are an object"),
        (b'{"kind": "void", "seq": 3}', "'void' cannot be published"),
        (b'{"sym": "a", "key": 7}', "a key is text"),
    ],
)
def test_lines_that_do_not_fit_the_schema_are_refused(
    line: bytes, words: str, writer: RowWriter
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_row(line, writer)
    assert words in str(caught.value)
