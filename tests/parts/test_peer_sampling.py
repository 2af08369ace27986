"""G12 of one view: its size, oneself, the sender; and who is gone stays gone for a while."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.parts.peer_sampling import View

SERVERS = ("s0", "s1")
names = st.integers(0, 40).map("c{}".format) | st.sampled_from([*SERVERS, "me"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("merge"), names, st.lists(names, max_size=30)),
        st.tuples(st.just("drop"), names, st.just([])),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(steps, st.integers(1, 20), st.integers())
@settings(max_examples=300)
def test_g12_a_view_is_bounded_without_oneself_and_with_the_sender(
    script: list[tuple[str, str, list[str]]], size_max: int, seed: int
) -> None:
    view, rng = View("me", size_max, SERVERS), Random(seed)
    for what, peer, theirs in script:
        before = set(view.peers)
        if what == "drop":
            view.drop(peer)
            assert set(view.peers) == before - {peer}
            continue
        view.merge(peer, theirs, rng)
        assert len(view.peers) == len(set(view.peers)) <= size_max
        assert set(view.peers) <= (before | set(theirs) | {peer}) - {"me", *SERVERS}
        if peer not in (*SERVERS, "me"):
            assert peer in view.peers
        # Nobody is left out while there is room, but for those known to be gone.
        missed = (before | set(theirs)) - {"me", *SERVERS} - set(view.peers) - set(view.gone)
        assert len(view.peers) == size_max or not missed
        assert len(view.gone) <= 4 * size_max


@given(st.lists(names, max_size=30), st.integers(1, 30), st.integers())
def test_a_pick_is_by_chance_and_without_repeats(peers: list[str], count: int, seed: int) -> None:
    view, rng = View("me", 20, SERVERS), Random(seed)
    view.merge("c0", peers, rng)
    picked = view.pick(count, rng)
    assert len(picked) == len(set(picked)) == min(count, len(view.peers))
    assert set(picked) <= set(view.peers)


def test_chance_is_fair_to_old_and_new() -> None:
    """Of two full views each half is as likely to stay; only the sender is sure to."""
    stayed = dict.fromkeys([f"c{n}" for n in range(41)], 0)
    for seed in range(2000):
        view, rng = View("me", 20, SERVERS), Random(seed)
        view.peers = [f"c{n}" for n in range(20)]
        view.merge("c40", [f"c{n}" for n in range(20, 40)], rng)
        for peer in view.peers:
            stayed[peer] += 1
    assert stayed.pop("c40") == 2000
    assert all(0.4 < count / 2000 < 0.55 for count in stayed.values()), stayed  # 19 / 40


def test_who_is_gone_is_not_taken_back_on_a_peers_word() -> None:
    view, rng = View("me", 4, SERVERS), Random(1)
    view.merge("a", ["b", "ghost"], rng)
    view.drop("ghost")
    view.merge("b", ["ghost"], rng)
    assert set(view.peers) == {"a", "b"}
    view.merge("ghost", [], rng)  # it speaks for itself
    assert "ghost" in view.peers
    view.drop("ghost")
    view.merge("s1", ["ghost"], rng)  # a server has heard from it
    assert "ghost" in view.peers
    view.drop("ghost")
    for _ in range(6 * 4):  # and nobody is struck off for good
        view.merge("b", ["ghost"], rng)
        assert "ghost" not in view.peers
    view.merge("b", ["ghost"], rng)
    assert "ghost" in view.peers


def test_a_stranger_that_fails_is_not_remembered() -> None:
    view = View("me", 4, SERVERS)
    view.drop("nobody")
    assert not view.gone
