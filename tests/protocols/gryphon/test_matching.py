"""Which events each receiver wants: links and exact filters agree with plain Python."""

from random import Random

import pytest

from surecast.protocols.gryphon import matching
from surecast.protocols.gryphon.config import LINKS_MAX
from surecast.protocols.gryphon.matching import Matcher, canonical, refusal
from surecast.where import index
from tests.protocols.gryphon.made import batch

KEYS = [b"a", b"b", b"c", None]


def text_of(wanted: set[bytes]) -> str:
    return " or ".join(f"key == '{key.decode()}'" for key in sorted(wanted)) or "key == 'none'"


def check(matcher: Matcher, wanted: dict[str, dict[int, set[bytes]]], rng: Random) -> None:
    keys = [rng.choice(KEYS) for _ in range(rng.randint(1, 20))]
    made = batch(5, keys)
    parts = matcher.parts(made)
    for receiver, filters in wanted.items():
        union = set().union(*filters.values()) if filters else set()
        expected = [5 + i for i, key in enumerate(keys) if key in union]
        part = parts.get(receiver)
        assert (part.seqs().tolist() if part is not None else []) == expected


@pytest.mark.parametrize("masks_bytes_max", [1, 16 << 20])
def test_receivers_get_what_their_filters_pass(
    masks_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_MASKS_BYTES_MAX", masks_bytes_max)
    rng = Random(7)
    matcher = Matcher("")
    wanted: dict[str, dict[int, set[bytes]]] = {f"r{n}": {} for n in range(8)}
    for _ in range(150):
        receiver = rng.choice(list(wanted))
        key, exact = rng.randrange(3), int(receiver[1:]) % 2 == 0
        if rng.random() < 0.3:
            matcher.remove(receiver, key)
            wanted[receiver].pop(key, None)
        else:
            chosen = {one for one in KEYS if one is not None and rng.random() < 0.4}
            matcher.add(receiver, key, text_of(chosen), exact=exact)
            wanted[receiver][key] = chosen
        check(matcher, wanted, rng)
    matcher.set_schema("a int64")
    check(matcher, wanted, rng)


def test_the_numbers_of_links_are_used_again() -> None:
    assert LINKS_MAX == index.LINKS_MAX
    matcher = Matcher("")
    for turn in range(3 * LINKS_MAX):
        matcher.add(f"b{turn}", 1, "key == 'a'")
        matcher.remove(f"b{turn}", 1)
    matcher.add("b", 1, "key == 'a'")
    assert list(matcher.parts(batch(1, [b"a", b"b"]))) == ["b"]


def test_a_filter_on_a_field_of_a_later_schema_passes_everything_until_it_is_known() -> None:
    matcher = Matcher("a int64")
    matcher.add("b", 1, "z > 5")
    assert matcher.takes_all("b", batch(1, [b"a"]))
    matcher.set_schema("a int64, z int64")
    assert not matcher.takes_all("b", batch(1, [b"a"]))
    assert matcher.parts(batch(1, [b"a"])) == {}, "the batch has no such field"


def test_the_form_and_the_refusal_of_a_filter() -> None:
    assert canonical("") == ""
    assert canonical("a  >  5") == "a > 5"
    assert refusal("a > 5", "a int64") == ""
    assert "'b'" in refusal("b > 5", "a int64")
