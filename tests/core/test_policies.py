"""Retention policies as text: parsed, shown, refused."""

import subprocess
import sys
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import surecast
from surecast.cli.options import parse_retention
from surecast.columns.rules import KeepAll, KeepFor, KeepLast, LatestPerKey, Policy
from surecast.core.policies import RETENTIONS, as_policy, parse_policy, show_policy
from surecast.errors import UsageError

HOUR = surecast.keep_for(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("keep-all", surecast.keep_all()),
        ("keep_all", surecast.keep_all()),
        ("latest-per-key", surecast.latest_per_key()),
        ("latest_per_key", surecast.latest_per_key()),
        ("latest_per-key", surecast.latest_per_key()),
        ("keep-last:100", surecast.keep_last(100)),
        ("keep_last:100", surecast.keep_last(100)),
        ("keep-for:1h", HOUR),
        ("keep_for:60min", HOUR),
        ("keep-for:3600", HOUR),
        ("keep_for:3600.0", HOUR),
        ("keep_for:0.0000005", KeepFor(500)),
        ("keep-for:1.5s", surecast.keep_for(timedelta(seconds=1.5))),
    ],
)
def test_both_spellings_are_parsed(text: str, policy: Policy) -> None:
    assert parse_policy(text) == as_policy(text) == as_policy(policy) == policy


POLICIES = st.one_of(
    st.builds(KeepAll),
    st.builds(LatestPerKey),
    st.builds(KeepLast, st.integers(1, (1 << 62) - 1)),
    st.builds(KeepFor, st.integers(1, 1 << 40)),
    st.builds(KeepFor, st.integers(1, 10_000).map(lambda n: n * 60 * 10**9)),
)


@given(POLICIES)
def test_a_shown_policy_is_parsed_as_the_same_policy(policy: Policy) -> None:
    assert parse_policy(show_policy(policy)) == policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (KeepFor(90 * 60 * 10**9), "keep-for:90min"),
        (KeepFor(86_400 * 10**9), "keep-for:1d"),
        (KeepFor(1_234_567_500_000_000), "keep-for:1234567500ms"),  # exactly
    ],
)
def test_durations_are_shown_in_the_largest_unit_that_is_exact(policy: Policy, text: str) -> None:
    assert show_policy(policy) == text


WRONG = [
    "", "forever", "keep", "keep-last", "keep-last:", "keep-last:0", "keep-last:-1", "keep-last:x",
    "keep-last:1.5", f"keep-last:{1 << 62}", "keep-for", "keep-for:", "keep-for:0", "keep-for:-1h",
    "keep-for:soon", "keep-for:1 week", "keep-for:inf", "keep-for:nan", "keep-for:1e3", "keep-all:",
    "keep-all:1", "latest-per-key:1", "Keep-All", "keep-last:2:3",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_policy_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    message = str(caught.value)
    assert message.startswith(f"retain: {text!r} is not a retention policy. Valid: {RETENTIONS}")


@pytest.mark.parametrize("value", [5, None, b"keep-all", timedelta(1)])
def test_a_value_that_is_neither_policy_nor_text_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="is not a retention policy"):
        as_policy(value)  # type: ignore[arg-type]


def test_all_interfaces_give_the_same_error() -> None:
    """Python, the command line and Spark; for HTTP see tests/server/test_http.py."""
    from surecast.pipeline.sink_options import parse

    messages = []
    for parse_text in (
        lambda: as_policy("for-ever"),
        lambda: parse_retention("for-ever"),
        lambda: parse({"retain": "for-ever"}),
    ):
        with pytest.raises(UsageError) as caught:
            parse_text()
        messages.append(str(caught.value))
    assert [text.partition(": ")[0] for text in messages] == ["retain", "--retain", "option retain"]
    assert len({text.partition(": ")[2] for text in messages}) == 1


def test_importing_policies_does_not_load_numpy() -> None:
    """`surecast publish --help` shows them."""
    code = "import sys, surecast.core.policies; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
