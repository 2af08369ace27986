"""Configuration: accepted values; each mistake is reported with its remedy."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surecast.core.config import check, load, parse, parse_bytes, parse_ns
from surecast.core.wire import Limits
from surecast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Link:
    delay_ns: int = 5_000_000
    loss: float = 0.0

    def validate(self) -> None:
        check(self, "loss", 0 <= self.loss < 1, "allowed is 0 up to, not including, 1")


@dataclass(frozen=True, slots=True)
class Proxy:
    region: str
    advertise_ns: int = 100_000_000
    dead_ns_max: int | None = None
    window_bytes: int = 65_536
    window: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 256
    rule: Literal["production", "literal"] = "production"
    peers: tuple[str, ...] = ()
    link: Link = Link()
    links: dict[str, Link] = field(default_factory=dict)
    spares: tuple[Link, ...] = ()


class Small(msgspec.Struct, frozen=True):
    size_bytes_max: int
    on: bool = False


def refusal(text: str, cls: type = Proxy, section: str = "proxy") -> str:
    with pytest.raises(ConfigError) as caught:
        load(cls, text, section)
    return str(caught.value)


def test_every_type_of_value_is_loaded() -> None:
    text = """
        [proxy]
        region = "eu"
        advertise_ns = "250ms"
        dead_ns_max = "1.5s"
        window_bytes = "64 KiB"
        window = 7
        rule = "literal"
        peers = ["us", "asia"]
        link = { delay_ns = "1ms", loss = 0 }
        spares = [{ delay_ns = 1 }, { loss = 0.5 }]
        [proxy.links.us]
        delay_ns = "35ms"
    """
    assert load(Proxy, text, "proxy") == Proxy(
        region="eu",
        advertise_ns=250_000_000,
        dead_ns_max=1_500_000_000,
        window_bytes=65_536,
        window=7,
        rule="literal",
        peers=("us", "asia"),
        link=Link(1_000_000, 0.0),
        spares=(Link(1), Link(loss=0.5)),
        links={"us": Link(35_000_000)},
    )


def test_text_bytes_and_mappings_are_the_same_source() -> None:
    text = '[a.b]\nsize_bytes_max = "1KB"\non = true'
    expected = Small(1000, True)
    assert load(Small, text, "a.b") == expected
    assert load(Small, text.encode(), "a.b") == expected
    assert load(Small, parse(text), "a.b") == expected
    assert load(Small, {"size_bytes_max": 1000, "on": True}) == expected


def test_an_absent_section_means_the_defaults() -> None:
    assert load(Link, "", "link") == Link()
    assert load(Link, "", "deep.er.link") == Link()


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ('region = "eu"\nadvertize_ns = 1', ["'advertize_ns'", "did you mean 'advertise_ns'?"]),
        ('region = "eu"\nzzz = 1', ["'zzz'", "Allowed: region, advertise_ns, "]),
        ("", ["missing key 'region'", "str"]),
        ("region = 3", ["region = 3", "expected `str`, got `int`"]),
        ('region = "eu"\nadvertise_ns = 1.5', ["advertise_ns = 1.5", "expected `int`"]),
        ('region = "eu"\nadvertise_ns = true', ["advertise_ns = true", "expected `int`"]),
        ('region = "eu"\nadvertise_ns = "soon"', ["'soon'", "not a duration", '"100ms"', "min"]),
        ('region = "eu"\nadvertise_ns = "5KiB"', ["'5KiB'", "not a duration"]),
        ('region = "eu"\nadvertise_ns = "-5s"', ["'-5s'", "not a duration"]),
        ('region = "eu"\nadvertise_ns = "0.5ns"', ["'0.5ns'", "not a whole number of nanosec"]),
        ('region = "eu"\nwindow_bytes = "5s"', ["'5s'", "not a size", '"64KiB"']),
        ('region = "eu"\nwindow = "5s"', ["window = '5s'", "expected `int`, got `str`"]),
        ('region = "eu"\nwindow = 0', ["window = 0", ">= 1"]),
        ('region = "eu"\nwindow = 2000', ["window = 2000", "<= 1024"]),
        ('region = "eu"\nrule = "liberal"', ["rule = 'liberal'", "invalid"]),
        ('region = "eu"\npeers = ["a", 2]', ["peers = ['a', 2]", "expected `str`", "[1]"]),
        ('region = "eu"\nlink = 3', ["link = 3", "table"]),
        ('region = "eu"\nlink = { los = 1 }', ["[proxy.link]", "'los'", "'loss'"]),
        ('region = "eu"\nlink = { loss = 1 }', ["[proxy.link]", "loss = 1.0", "up to"]),
        ('region = "eu"\nspares = [{}, { loss = -1 }]', ["[proxy.spares[1]]", "loss = -1.0"]),
        ('region = "eu"\nlinks.us.delay_ns = "x"', ["[proxy.links.us]", "delay_ns = 'x'"]),
    ],
)
def test_a_mistake_is_reported_with_its_remedy(body: str, parts: list[str]) -> None:
    message = refusal(f"[proxy]\n{body}")
    assert message.startswith("[proxy")
    for part in parts:
        assert part in message, message


def test_a_long_value_is_cut() -> None:
    assert len(refusal(f'[proxy]\nregion = "eu"\nwindow = "{"x" * 5000}"')) < 200


def test_invalid_toml_is_refused() -> None:
    assert "not valid TOML" in refusal("[proxy")
    assert "line 2" in refusal("[proxy]\nregion = ,")
    assert "must be a table" in refusal("proxy = 3")
    assert "too deeply" in refusal("x = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Proxy, b"\xff\xfe", "proxy")


def test_limits_come_from_toml() -> None:
    limits = load(Limits, '[limits]\nframe_bytes_max = "32MiB"\nbatch_rows_max = 5', "limits")
    assert (limits.frame_bytes_max, limits.batch_rows_max) == (32 << 20, 5)
    assert limits.batch_bytes_max == (31 << 20) - 128
    for body, part in [
        ("frame_bytes_max = 5", "frame_bytes_max = 5: allowed is 2101248"),
        ('frame_bytes_max = "5GiB"', "to 4294967295"),
        ("attachments_max = 70000", "attachments_max = 70000: allowed is 0 to 65535"),
        ("batch_rows_max = 0", "batch_rows_max = 0: allowed is 1"),
        ("control_bytes_max = 1", "control_bytes_max = 1: allowed is 64"),
        ("versions = [1, 9]", "versions = (1, 9)"),
        ("versions = []", "versions = ()"),
        ("batch_bytes_max = 9", "unknown key 'batch_bytes_max'"),  # derived, not set
    ]:
        assert part in refusal(f"[limits]\n{body}", Limits, "limits")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("3us", 3000),
        ("0.1s", 10**8),
        ("2min", 12 * 10**10),
        ("1d", 864 * 10**11),
    ],
)
def test_durations_are_parsed(text: str, value: int) -> None:
    assert parse_ns(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0B", 0),
        ("12B", 12),
        ("1.5KiB", 1536),
        ("16MiB", 1 << 24),
        ("2GiB", 2 << 30),
        ("3MB", 3 * 10**6),
    ],
)
def test_sizes_are_parsed(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@given(st.text(max_size=20) | st.from_regex(r"[0-9.]{1,8}\s?[a-zA-Z]{0,3}", fullmatch=True))
def test_any_text_is_parsed_or_raises_config_error(text: str) -> None:
    for read in (parse_ns, parse_bytes):
        with suppress(ConfigError):
            assert read(text) >= 0


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["region", "advertise_ns", "window", "peers", "link", "links", "nope"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["loss", "delay_ns", "us"]), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
def test_any_mapping_loads_or_raises_config_error(table: dict[str, object]) -> None:
    with suppress(ConfigError):
        assert isinstance(load(Proxy, {"proxy": table}, "proxy"), Proxy)
