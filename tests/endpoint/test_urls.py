"""Urls with or without a scheme, and with secrets that must not be shown."""

import pytest

from surecast.endpoint.discovery import parse_url, redacted
from surecast.errors import UsageError
from surecast.pipeline import options, sink_options

SECRET = "hunter2"
WITH_SECRET = [
    f"surecast://user:{SECRET}@127.0.0.1:7400",
    f"surecast://{SECRET}@127.0.0.1:7400",
    f"user:{SECRET}@127.0.0.1:7400",
    f"surecast://user:a,b{SECRET}@127.0.0.1:7400,127.0.0.1:7401",
    f"surecast://a:1,user:{SECRET}@b:2",
    f"surecast://user:x?{SECRET}@127.0.0.1:7400",
    f"surecast://user:x@{SECRET}@127.0.0.1:7400",
    f"surecast://127.0.0.1:7400?token={SECRET}",
    f"surecast://127.0.0.1:7400/#{SECRET}",
    f"http://user:{SECRET}@127.0.0.1:7480/v1/status?token={SECRET}",
    f"nats://user:{SECRET}@127.0.0.1:4222",
]


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("127.0.0.1", [("127.0.0.1", 7400)]),
        ("h:1,i:2", [("h", 1), ("i", 2)]),
        ("[::1]:5", [("::1", 5)]),
    ],
)
def test_the_scheme_is_optional(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_url(url) == addresses == parse_url(f"surecast://{url}")


@pytest.mark.parametrize("url", WITH_SECRET)
def test_a_url_with_a_password_or_query_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match=r"no user, password or query.*\*\*\*.*token=") as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in redacted(url)


@pytest.mark.parametrize("url", WITH_SECRET)
def test_options_of_spark_do_not_show_it_either(url: str) -> None:
    with pytest.raises(UsageError, match="option url") as source:
        options.parse({"url": url, "subscribe": "s"}, streaming=False)
    with pytest.raises(UsageError, match="option url") as sink:
        sink_options.parse({"url": url, "stream": "s"})
    assert SECRET not in f"{source.value} {sink.value}"


def test_options_do_not_show_tokens() -> None:
    source = options.parse({"subscribe": "s", "token": SECRET}, streaming=False)
    sink = sink_options.parse({"stream": "s", "token": SECRET})
    assert (source.token, sink.token) == (SECRET, SECRET)
    assert SECRET not in f"{source} {sink}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("surecast://h:1,i:2", "surecast://h:1,i:2"),
        ("h:1", "h:1"),
        ("", ""),
        ("surecast://u:p@h:1/x?y#z", "surecast://***@h:1/x?***"),
        ("u@h", "***@h"),
    ],
)
def test_only_secrets_are_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("url", ["http://127.0.0.1:7480", "https://h"])
def test_the_url_of_an_http_port_is_refused_as_such(url: str) -> None:
    with pytest.raises(UsageError, match=r"names an HTTP port.*surecast://127\.0\.0\.1:7400"):
        parse_url(url)
