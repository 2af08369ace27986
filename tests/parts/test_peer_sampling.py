"""G12 for one view: its size, never oneself, always the sender; lost peers stay out for a while."""

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
    for action, peer, theirs in script:
        before = set(view.peers)
        if action == "drop":
            view.drop(peer)
            assert set(view.peers) == before - {peer}
            continue
        view.merge(peer, theirs, rng)
        assert len(view.peers) == len(set(view.peers)) <= size_max
        assert set(view.peers) <= (before | set(theirs) | {peer}) - {"me", *SERVERS}
        if peer not in (*SERVERS, "me"):
            assert peer in view.peers
        # While there is room, only peers known to be gone are left out.
        missed = (before | set(theirs)) - {"me", *SERVERS} - set(view.peers) - set(view.gone)
        assert len(view.peers) == size_max or not missed
        assert len(view.gone) <= 4 * size_max


@given(st.lists(names, max_size=30), st.integers(1, 30), st.integers())
def test_a_pick_is_random_and_without_repeats(peers: list[str], count: int, seed: int) -> None:
    view, rng = View("me", 20, SERVERS), Random(seed)
    view.merge("c0", peers, rng)
    picked = view.pick(count, rng)
    assert len(picked) == len(set(picked)) == min(count, len(view.peers))
    assert set(picked) <= set(view.peers)


def test_old_and_new_peers_are_equally_likely_to_stay() -> None:
    """Peers of both full views are equally likely to stay; only the sender always does."""
    stayed = dict.fromkeys([f"c{n}" for n in range(41)], 0)
    for seed in range(2000):
        view, rng = View("me", 20, SERVERS), Random(seed)
        view.peers = [f"c{n}" for n in range(20)]
        view.merge("c40", [f"c{n}" for n in range(20, 40)], rng)
        for peer in view.peers:
            stayed[peer] += 1
    assert stayed.pop("c40") == 2000
    assert all(0.4 < count / 2000 < 0.55 for count in stayed.values()), stayed  # 19 / 40


def test_a_lost_peer_is_not_added_again_on_the_report_of_a_peer() -> None:
    view, rng = View("me", 4, SERVERS), Random(1)
    view.merge("a", ["b", "ghost"], rng)
    view.drop("ghost")
    view.merge("b", ["ghost"], rng)
    assert set(view.peers) == {"a", "b"}
    view.merge("ghost", [], rng)  # a message from the peer itself
    assert "ghost" in view.peers
    view.drop("ghost")
    view.merge("s1", ["ghost"], rng)  # a server reports it
    assert "ghost" in view.peers
    view.drop("ghost")
    for _ in range(6 * 4):  # it is not excluded permanently
        view.merge("b", ["ghost"], rng)
        assert "ghost" not in view.peers
    view.merge("b", ["ghost"], rng)
    assert "ghost" in view.peers


def test_dropping_an_unknown_peer_leaves_no_trace() -> None:
    view = View("me", 4, SERVERS)
    view.drop("nobody")
    assert not view.gone
