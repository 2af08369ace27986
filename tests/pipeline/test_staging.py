"""The decisions of the sink: with crashes after every step, zombies and replays, every row is
published once."""

from collections.abc import Callable, Generator
from random import Random
from typing import Any

import msgspec
import pytest

from surecast.columns.batch import COLLECT, Batch
from surecast.columns.retention import RetentionIndex
from surecast.columns.rules import (
    BeforeSeq,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    encode_collect,
)
from surecast.columns.rules import Collect as CollectEvent
from surecast.core.types import SECOND
from surecast.errors import PeerError, SurecastError
from surecast.pipeline import staging
from surecast.pipeline.staging import (
    Append,
    ChunkRef,
    Collect,
    Copy,
    Done,
    Intent,
    Ledger,
    Outcome,
    Read,
    abort,
    chunk_batch,
    chunk_key,
    chunk_value,
    commit,
    staging_name,
)
from tests.pipeline.staging_model import Log, Replay, SinkState, Spark, Step

# ---------------------------------------------------------------- records


def test_a_chunk_keeps_a_batch_unchanged() -> None:
    stream, target = bytes(16), bytes(range(16))
    for batch in (
        Batch.of(stream, [b"a", b"bc"], [b"k", None], [b"t", None]),
        Batch.of(stream, [b"12345678"] * 100, [b"k"] * 100),
        Batch.of(stream, [b""]),
    ):
        found = chunk_batch(chunk_value(batch), target)
        assert found.body == batch.body
        assert found.stream_id == target
        assert found.to_rows() == batch.to_rows()


def test_invalid_chunks_are_refused() -> None:
    value = chunk_value(Batch.of(bytes(16), [b"one", b"two"]))
    for bad in (b"", value[:3], b"\x02" + value[1:], value[:-1], value[:4] + b"\xff" + value[5:]):
        with pytest.raises(PeerError):
            chunk_batch(bad, bytes(16))


def test_unknown_keys_of_a_query_are_refused() -> None:
    for key in (b"q/", b"q/xyz/chunk/w", b"q/0", b"q/00/chunk", b"q/\xff/a/b"):
        with pytest.raises(PeerError, match="strange key"):
            Ledger("q").note(1, key, b"")
    assert Ledger("q").note(1, b"other/xyz", b"") is None
    assert Ledger("q").note(1, b"q2/xyz", b"") is None


def test_names_of_staging_streams() -> None:
    assert staging_name("orders.eu") == "_spark.orders.eu"
    assert staging_name(None) == "_spark"


# ---------------------------------------------------------------- one commit, step by step

INTENT = Intent("w1", ("orders",), (ChunkRef(1, 10, 0), ChunkRef(2, 5, 0)))
ID = bytes(range(16))


def words() -> Any:
    return iter("abcdefghij").__next__


def test_a_commit_step_by_step() -> None:
    ledger = Ledger("q")
    acts = commit("q", 7, INTENT, words())
    assert next(acts) == Read(0)
    for seq in (1, 2):
        ledger.note(seq, chunk_key("q", 7, "w1", 0, 11, seq), b"...")
    intent = acts.send(ledger)
    assert isinstance(intent, Append)
    assert intent.key == b"q/0000000000000007/intent/w1/a"
    assert acts.send(3) == Read(3)
    ledger.note(3, intent.key, intent.value)
    assert acts.send(ledger) == Copy(7, INTENT, {})
    done = acts.send({ID: 16})
    assert isinstance(done, Append)
    assert done.key == b"q/done/0000000000000007"
    assert acts.send(4) == Collect(BeforeSeq(4))
    with pytest.raises(StopIteration) as end:
        acts.send(5)
    assert end.value.value == Outcome(False, (7,), 7, 15)
    # The next batch continues from there and removes the leftovers of the first.
    ledger = Ledger("q")
    ledger.note_void(3, collected=True)
    ledger.note(4, done.key, done.value)
    acts = commit("q", 8, INTENT, words())
    next(acts)
    intent = acts.send(ledger)
    assert isinstance(intent, Append)
    acts.send(6)
    ledger.note_void(5, collected=False)
    ledger.note(6, intent.key, intent.value)
    assert acts.send(ledger) == Copy(8, INTENT, {ID: 16})
    acts.send({ID: 31})
    assert acts.send(7) == Collect(BeforeSeq(7))
    with pytest.raises(StopIteration):
        acts.send(8)


def test_records_needed_by_other_queries_are_not_collected() -> None:
    ledger = Ledger("q")
    ledger.note(1, chunk_key("q", 6, "w0", 0, 11, 0), b"...")
    ledger.note(2, chunk_key("other", 0, "w", 0, 12, 0), b"...")
    ledger.note(3, b"q/done/0000000000000006", staging.msgspec.msgpack.encode(Done({ID: 9})))
    ledger.note(4, b"strange", b"...")
    acts = commit("q", 7, INTENT, words())
    next(acts)
    intent = acts.send(ledger)
    assert isinstance(intent, Append)
    acts.send(5)
    ledger.note(5, intent.key, intent.value)
    acts.send(ledger)
    acts.send({ID: 24})
    assert acts.send(6) == Collect(BeforeSeq(2))
    assert acts.send(7) == Collect(KeyIs(b"q/done/0000000000000006"))
    assert acts.send(8) == Collect(KeyPrefix(b"q/0000000000000007/"))
    with pytest.raises(StopIteration):
        acts.send(9)


def test_a_long_intent_is_divided_into_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PAGE_BYTES", 400_000)
    chunks = tuple(ChunkRef((1 << 40) + n, 20_000, n % 5_000) for n in range(60_000))
    intent = Intent("w", tuple(f"some.long.name.{n}" for n in range(5_000)), chunks)
    ledger, acts = Ledger("q"), commit("q", 0, intent, iter(map(str, range(99))).__next__)
    act, pages = next(acts), 0
    while not isinstance(act, Copy):
        if isinstance(act, Append):
            assert len(act.value) <= staging.PAGE_BYTES
            pages += b"/page/" in act.key
            seq = ledger.end
            ledger.note(seq, act.key, act.value)
            act = acts.send(seq)
        else:
            act = acts.send(ledger)
    assert pages == 3
    assert act.intent == intent
    lost = ledger.pending(0)[0]
    ledger.pages.popitem()
    with pytest.raises(SurecastError, match="1 of 3 pages"):
        ledger.whole(0, lost)


def test_a_driver_reads_again_if_records_were_collected_meanwhile() -> None:
    ledger = Ledger("q")
    acts = commit("q", 7, INTENT, words())
    next(acts)
    intent = acts.send(ledger)
    assert isinstance(intent, Append)
    assert acts.send(9) == Read(9)
    ledger.note_void(8, collected=True)  # an unknown record
    ledger.note(9, intent.key, intent.value)
    mark = acts.send(ledger)
    assert isinstance(mark, Append)
    assert mark.key.startswith(b"q/0000000000000007/mark/")
    assert acts.send(12) == Read(12)
    ledger.note(10, b"q/done/0000000000000007", staging.msgspec.msgpack.encode(Done({ID: 16})))
    ledger.note_void(11, collected=False)
    ledger.note(12, mark.key, mark.value)
    assert acts.send(ledger) == Collect(BeforeSeq(10))
    assert acts.send(13) == Collect(KeyPrefix(b"q/0000000000000007/"))
    with pytest.raises(StopIteration) as end:
        acts.send(14)
    assert end.value.value == Outcome(True, (), 7, 15)


def test_a_staging_stream_that_always_changes_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "LOOKS_MAX", 5)

    def live() -> None:
        acts: Any = commit("q", 7, INTENT, iter(map(str, range(100))).__next__)
        ledger, answer = Ledger("q"), None
        while True:
            act = acts.send(answer)
            if isinstance(act, Append):
                answer = ledger.end + 1
                continue
            if act.to:
                ledger.note_void(act.to, collected=True)
            answer = ledger

    with pytest.raises(SurecastError, match="longer triggers"):
        live()


@pytest.mark.parametrize("trouble", [Append, Collect])
def test_a_one_time_job_does_not_fail_once_everything_is_published(trouble: type[Any]) -> None:
    acts = commit("once-1", 0, INTENT, words(), once=True)
    ledger = Ledger("once-1")

    def live() -> None:
        act, published = next(acts), False
        while True:
            if published and isinstance(act, trouble):
                act = acts.throw(SurecastError("the region is gone"))
            elif isinstance(act, Append):
                seq = ledger.end
                ledger.note(seq, act.key, act.value)
                act = acts.send(seq)
            elif isinstance(act, Copy):
                published = True
                act = acts.send({ID: 16})
            else:
                act = acts.send(ledger)

    with pytest.raises(StopIteration) as end:
        live()
    assert end.value.value == Outcome(False, (0,), 0, 15)


def outcome_of(ledger: Ledger, batch: int, intent: Intent) -> Outcome:
    """The outcome of a commit without disturbances."""
    acts = commit("q", batch, intent, words())
    act = next(acts)
    try:
        while True:
            answer: Any = ledger
            if isinstance(act, Append):
                answer = ledger.end
                ledger.note(answer, act.key, act.value)
            elif isinstance(act, Copy):
                answer = {ID: act.numbers.get(ID, 1) + act.intent.rows}
            act = acts.send(answer)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def rows(digest: int | None, after: int | None = None) -> Intent:
    return staging.msgspec.structs.replace(INTENT, digest=digest, after=after)


def test_a_commit_reports_other_rows_than_those_published() -> None:
    ledger = Ledger("q")
    assert outcome_of(ledger, 0, rows(7)) == Outcome(False, (0,), 0, 15)
    for digest, others in ((7, False), (8, True), (None, False)):  # None: a streaming query
        assert outcome_of(ledger, 0, rows(digest)) == Outcome(True, (), 0, 15, others)


@pytest.mark.parametrize("page_bytes", [1 << 20, 9])
def test_a_commit_reports_other_rows_than_those_of_an_open_intent(
    page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PAGE_BYTES", page_bytes)
    for digest in (7, 8):
        ledger = Ledger("q")
        acts = commit("q", 0, rows(7), iter(map(str, range(99))).__next__)
        act: Any = next(acts)
        while not isinstance(act, Copy):
            if isinstance(act, Append):
                ledger.note(ledger.end, act.key, act.value)
            act = acts.send(ledger if isinstance(act, Read) else ledger.end - 1)
        assert outcome_of(ledger, 0, rows(digest)).others == (digest == 8)
        assert ledger.last.digest == 7


def test_a_commit_reports_other_rows_of_a_part() -> None:
    ledger = Ledger("q")
    outcome_of(ledger, 100, rows(1, after=-1))
    outcome_of(ledger, 200, rows(2, after=100))
    assert not outcome_of(ledger, 200, rows(2, after=100)).others
    assert outcome_of(ledger, 200, rows(3, after=100)).others
    assert not outcome_of(
        ledger, 200, rows(3, after=150)
    ).others  # another part, which was also published
    assert not outcome_of(ledger, 100, rows(3, after=-1)).others  # too long ago to know


def test_records_of_an_earlier_version_without_digest_are_accepted() -> None:
    ledger = Ledger("q")
    done = staging.msgspec.msgpack.encode([{ID: 16}])
    ledger.note(1, b"q/done/0000000000000000", done)
    assert outcome_of(ledger, 0, rows(7)) == Outcome(True, (), 0, 15)
    ledger = Ledger("q")
    intent = staging.msgspec.msgpack.encode(["w0", ["orders"], [[1, 10, 0], [2, 5, 0]], None, []])
    ledger.note(1, b"q/0000000000000000/intent/w0/a", intent)
    assert outcome_of(ledger, 0, rows(7)) == Outcome(False, (0,), 0, 15)
    assert outcome_of(ledger, 0, rows(8)).others is False


def test_an_intent_after_its_own_abandonment_is_void() -> None:
    ledger = Ledger("q")
    acts = abort("q", 7, "w1", words())
    gone = next(acts)
    assert isinstance(gone, Append)
    assert acts.send(1) == Read(1)
    ledger.note(1, gone.key, gone.value)
    assert acts.send(ledger) == Collect(KeyPrefix(b"q/0000000000000007/chunk/w1/"))
    late = commit("q", 7, INTENT, words())
    next(late)
    intent = late.send(ledger)
    assert isinstance(intent, Append)
    late.send(2)
    ledger.note(2, intent.key, intent.value)
    with pytest.raises(SurecastError, match="abandoned"):
        late.send(ledger)


def test_abort_keeps_chunks_that_must_be_published() -> None:
    ledger = Ledger("q")
    ledger.note(1, b"q/0000000000000007/intent/w1/a", staging.msgspec.msgpack.encode(INTENT))
    for writer, spared in (("w1", True), ("w2", False)):
        acts = abort("q", 7, writer, words())
        next(acts)
        acts.send(2)
        try:
            assert acts.send(ledger) == Collect(
                KeyPrefix(f"q/0000000000000007/chunk/{writer}/".encode())
            )
            assert not spared
        except StopIteration:
            assert spared


# ---------------------------------------------------------------- crashes everywhere


@pytest.fixture(autouse=True)
def facts_move_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MOVE_AFTER", 4)


def run(step: Step, steps: int = 1 << 30) -> tuple[int, bool]:
    """Run a driver for at most `steps` steps; returns how many it took and whether it finished."""
    for taken in range(steps):
        try:
            next(step)
        except StopIteration:
            return taken, True
    return steps, False


def finish(spark: Spark) -> None:
    """Run a last driver without disturbances, and judge the result."""
    assert run(spark.driver("last"))[1]
    assert spark.judge() == []


def assert_only_the_last_done_is_left(spark: Spark) -> None:
    spark.batches += 1  # the next driver removes leftovers of zombies
    finish(spark)
    left = [key for key in spark.state.log.live() if key.startswith(b"q/")]
    assert left == [f"q/done/{spark.batches - 1:016x}".encode()]


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("lands", [False, True])
def test_two_crashes_at_any_steps_publish_every_row_once(targets: int, lands: bool) -> None:
    """Driver 1 crashes at step i, driver 2 at step j; `lands`: appends of driver 1 arrive later."""
    total, _ = run(Spark(SinkState(Random(1)), 2, targets).driver("alone"))
    assert total > 20
    crashes = 0
    for first in range(1, total + 1):
        for second in (*range(1, total, 7), 1 << 30):
            spark = Spark(SinkState(Random(first * 1000 + second)), 2, targets)
            run(spark.driver("one"), first)
            in_flight = [pending for pending in spark.state.pending_appends if not pending.seq]
            two = spark.driver("two")
            run(two, second // 2)
            for pending in in_flight if lands else ():
                spark.state.land(pending)
            run(two, second)
            finish(spark)
            assert_only_the_last_done_is_left(spark)
            crashes += 1
    assert crashes > 100


def test_a_lost_entry_of_the_commit_log_publishes_nothing_twice() -> None:
    for seed in range(50):
        rng = Random(seed)
        spark = Spark(SinkState(Random(seed)), 4)
        run(spark.driver("one"), rng.randint(1, 200))
        spark.committed = max(-1, spark.committed - rng.randint(0, 1))
        run(spark.driver("two"), rng.randint(1, 200))
        spark.committed = max(-1, spark.committed - 1)
        finish(spark)
        assert_only_the_last_done_is_left(spark)


def random_failures(seed: int, *, batches: int = 4) -> Spark:
    """Drivers that crash, become zombies, have failing tasks or lose the region; then one without
    disturbances."""
    rng = Random(seed)
    state = SinkState(Random(f"{seed}/shop"), memory=rng.randint(1, 4))
    spark = Spark(state, batches, targets=rng.choice((1, 1, 3)))
    others = [Spark(state.beside(name), 2 * batches) for name in ("p", "r")[: rng.randint(0, 2)]]
    beside = [other.driver("other") for other in others]
    drivers: list[Step] = []
    odds = rng.choice((0, 0.2)), rng.choice((0, 0.02)), rng.choice((0, 0, 0.3))

    def dice(number: int) -> Callable[[], bool]:
        return lambda: rng.random() < odds[number]

    for number in range(rng.randint(2, 6)):
        if rng.random() < 0.3:
            spark.committed = max(
                -1, spark.committed - 1
            )  # the newest entry of the commit log is lost
        drivers.append(spark.driver(f"d{number}", dice(0), dice(1), dice(2)))
        for _ in range(rng.randint(1, 150)):
            # Mostly the newest driver runs; its predecessors are zombies.
            driver = drivers[-1] if rng.random() < 0.6 else rng.choice(drivers)
            if beside and rng.random() < 0.3:
                driver = rng.choice(beside)
            for _ in range(rng.choice((1, 1, 5, 20))):
                next(driver, None)
            in_flight = [pending for pending in state.pending_appends if not pending.seq]
            if in_flight and rng.random() < 0.05:
                state.land(rng.choice(in_flight))
        drivers = [driver for driver in drivers if rng.random() < 0.7]
    for driver in (*drivers, *beside):  # zombies run to their end
        run(driver)
    for pending in state.pending_appends:
        if rng.random() < 0.5:
            state.land(pending)
    finish(spark)
    for other in others:
        finish(other)
    return spark


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(0, 250), range(250, 500)], ids=["a", "b"])
def test_random_failures_publish_every_row_once(seeds: range) -> None:
    replays = 0
    for seed in seeds:
        spark = random_failures(seed)
        assert_only_the_last_done_is_left(spark)
        replays += sum(replayed for _, replayed in spark.outcomes)
    assert replays > 50  # replays were tested, too


@pytest.mark.slow
def test_random_failures_with_intents_of_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PAGE_BYTES", 9)
    for seed in range(100):
        assert_only_the_last_done_is_left(random_failures(seed))
        random_failures_of_parts(seed)


# ---------------------------------------------------------------- leftovers


def index_of(log: Log) -> RetentionIndex:
    """The retention index that every replica keeps of the staging stream."""
    index = RetentionIndex(LatestPerKey())
    batches: list[Batch] = []
    for seq, entry in enumerate(log.entries, 1):
        if entry.control:
            batch = Batch.of(bytes(16), [encode_collect(CollectEvent(entry.value))], kind=COLLECT)
        else:
            batch = Batch.of(bytes(16), [b""], [entry.key])
        batches.append(batch.sequenced(seq, 1, 1))
        index.feed(batches[-1], lambda lo, hi: batches[lo - 1 : hi - 1])
    return index


@pytest.mark.slow
def test_a_staging_stream_does_not_grow_with_the_batches() -> None:
    state = SinkState(Random(3))
    named = [Spark(state.beside(f"named-{n}"), 1) for n in range(5)]
    for other in named:
        finish(other)
    spark = Spark(state, 0)
    killed = Spark(state.beside("once-1"), 1).driver("killed")
    while not any(key.startswith(b"once-1/done") for key in state.log.live()):
        next(killed)  # it crashes between its `done` and its collect
    for batches in (10, 30, 60, 120, 200):
        spark.batches = batches
        finish(spark)
        index = index_of(state.log)
        live = index.live(1, index.end)
        room = staging.MOVE_AFTER + 40
        assert live.total() < room
        assert index.end - index._floor() < room
        assert len([key for key in state.log.live() if key.startswith(b"named-")]) == 5
    assert not any(key.startswith(b"once-") for key in state.log.live())
    for other in named:
        other.committed = -1  # run again, they find that they are done
        finish(other)
        assert other.outcomes[-1] == (0, True)


def silence(steps: int, query: str, days: float) -> tuple[Spark, list[bytes]]:
    """A driver is killed; another query runs later. Returns the first query and its leftovers."""
    state = SinkState(Random(steps))
    killed, spark = Spark(state.beside(query), 3), Spark(state, 1)
    run(killed.driver("killed"), steps)
    state.log.now_ns += int(days * 24 * 3600) * SECOND
    finish(spark)
    return killed, [key for key in state.log.live() if key.startswith(query.encode())]


def test_chunks_of_a_killed_driver_are_collected_by_other_queries_in_time() -> None:
    total, _ = run(Spark(SinkState(Random(1)), 3).driver("alone"))
    staged = 0
    for steps in range(1, total + 9):
        staged += bool(silence(steps, "once-1", 0.9)[1])
        assert silence(steps, "once-1", 1.1)[1] == []
        killed, left = silence(steps, "p", 6.9)
        finish(killed)
        killed, left = silence(steps, "p", 7.1)
        kinds = {staging._key_fields(key).kind for key in left}
        assert kinds <= {staging.DONE} or staging.INTENT in kinds  # which must be published
        finish(killed)  # it is continued
    assert staged > 5


def test_leftovers_after_needed_records_are_garbage() -> None:
    ledger = Ledger("q")
    ledger.note(1, b"strange", b"...", 0)
    ledger.note(2, chunk_key("p", 3, "w", 0, 12, 0), b"...", 0)
    ledger.note(3, chunk_key("once-1", 0, "v", 0, 12, 0), b"...", 0)
    ledger.note(4, b"q/0000000000000007/mark/w/a", b"", staging.SILENT_NS + 1)
    assert list(ledger.garbage(1)) == [
        KeyPrefix(b"p/0000000000000003/chunk/w/"),
        KeyPrefix(b"once-1/0000000000000000/chunk/v/"),
    ]


def test_records_of_other_active_queries_are_not_garbage() -> None:
    ledger = Ledger("q")
    ledger.note(1, b"strange", b"...")
    ledger.note(2, chunk_key("p", 3, "w", 0, 12, 0), b"...")
    ledger.note(3, b"p/done/0000000000000003", b"...")
    assert ledger.low() == (1, [])
    assert list(ledger.garbage(1)) == []


# ---------------------------------------------------------------- a job in parts


def grow(replay: Replay, events: int) -> None:
    """Let the archive grow, run the job without disturbances, and judge the result."""
    replay.archive += events
    assert run(replay.run("last"))[1]
    assert replay.judge() == []


def test_a_job_continues_when_the_archive_has_grown() -> None:
    replay = Replay(SinkState(Random(1)), 250, 600)
    run(replay.run("one"))
    assert replay.judge() == []
    grow(replay, 400)
    grow(replay, 0)


def test_a_job_continues_after_a_crash_at_any_step() -> None:
    total, _ = run(Replay(SinkState(Random(1)), 4, 10).run("alone"))
    assert total > 20
    for first in range(1, total + 1):
        replay = Replay(SinkState(Random(first)), 4, 10)
        run(replay.run("one"), first)
        grow(replay, first % 5)


def random_failures_of_parts(seed: int) -> None:
    """Runs that crash or become zombies, over a growing archive; then an undisturbed one."""
    rng = Random(seed)
    state = SinkState(Random(f"{seed}/shop"), memory=rng.randint(1, 4))
    replay = Replay(state, rng.randint(2, 6), rng.randint(1, 9))
    runs: list[Step] = []
    for number in range(rng.randint(2, 6)):
        runs.append(replay.run(f"r{number}"))
        for _ in range(rng.randint(1, 150)):
            next(runs[-1] if rng.random() < 0.6 else rng.choice(runs), None)
            in_flight = [pending for pending in state.pending_appends if not pending.seq]
            if in_flight and rng.random() < 0.05:
                state.land(rng.choice(in_flight))
        replay.archive += rng.choice((0, 1, 5))
        runs = [step for step in runs if rng.random() < 0.7]
    for step in runs:
        run(step)
    grow(replay, 2)


def test_random_failures_of_a_job_in_parts() -> None:
    for seed in range(300):
        random_failures_of_parts(seed)


class BoundedParts(dict[int, tuple[int, Intent]]):
    """The parts of a ledger. A walk along them that does not end fails instead of hanging."""

    lookups = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.lookups += 1
        assert self.lookups <= 10, "the walk along the parts does not end"
        return super().get(key, default)


def parts_that_do_not_advance(lies: list[tuple[int, int]], ledger_type: type[Ledger]) -> None:
    """A job is done up to 5. False records have a part (after, batch) that follows itself or a
    later one. They are ignored: only the part 5..9 is published.
    """
    ledger = ledger_type("q", parts=BoundedParts())
    ledger.note(1, b"q/done/%016x" % 5, staging.msgspec.msgpack.encode(Done({}, -1)))
    for seq, (after, batch) in enumerate(lies, 2):
        lie = Intent("liar", ("t",), (ChunkRef(1, 1, 0),), after)
        ledger.note(seq, b"q/%016x/intent/liar/u" % batch, staging._encode(lie))
    honest = Intent("honest", ("t",), (ChunkRef(1, 1, 0),), 5)
    ledger.note(9, b"q/%016x/intent/honest/u" % 9, staging._encode(honest))
    assert ledger.pending(20) == {9: honest}
    assert not ledger.is_bound(7, "liar")


LIES = [[(5, 5)], [(9, 9)], [(9, 5)], [(9, 7), (7, 7)]]


@pytest.mark.parametrize("lies", LIES)
def test_a_part_that_follows_itself_is_ignored(lies: list[tuple[int, int]]) -> None:
    parts_that_do_not_advance(lies, Ledger)


# ---------------------------------------------------------------- mutants


def last_intent_wins(self: Ledger, seq: int, key: bytes, value: bytes, time: int) -> Any:
    place = original_note(self, seq, key, value, time)
    if place is not None and place.kind == staging.INTENT:
        self.intents[place.batch] = staging.msgspec.msgpack.decode(value, type=Intent)
    return place


def abandonment_is_ignored(self: Ledger, seq: int, key: bytes, value: bytes, time: int) -> Any:
    place = original_note(self, seq, key, value, time)
    self.abandoned.clear()
    return place


def collected_records_are_ignored(self: Ledger, last: int, *, collected: bool) -> None:
    original_note_void(self, last, collected=False)


def old_intents_are_ignored(self: Ledger, batch: int) -> dict[int, Intent]:
    return {b: intent for b, intent in original_pending(self, batch).items() if b == batch}


def numbers_restart(self: Ledger, batch: int, intent: Intent, numbers: Any) -> bytes:
    original_finish(self, batch, intent, {})
    return staging.msgspec.msgpack.encode(Done({}))


def needed_records_are_garbage(self: Ledger, low: int) -> Generator[Any, None, None]:
    yield KeyPrefix(f"{self.query}/0".encode())
    yield from original_garbage(self, low)


def needs_of_other_queries_are_ignored(self: Ledger, seq: int, place: Any) -> bool:
    ours = place is None or place.query == self.query
    return ours and original_is_needed(self, seq, place)


def facts_are_dropped(self: Ledger) -> tuple[int, list[int]]:
    return original_low(self)[0], []


def silence_is_sufficient(self: Ledger, query: str) -> bool:
    return query != self.query and self.time_ns - self.news.get(query, 0) > staging.SILENT_NS


def any_part_is_accepted(self: Ledger, batch: int, intent: Intent) -> None:
    self.intents.setdefault(batch, intent)


original_note, original_note_void, original_finish = Ledger.note, Ledger.note_void, Ledger.finish
original_garbage, original_pending = Ledger.garbage, Ledger.pending
original_is_needed, original_low = Ledger.is_needed, Ledger.low


@pytest.mark.parametrize(
    ("method", "mutant", "caught_by"),
    [
        ("note", last_intent_wins, 3),
        ("note", abandonment_is_ignored, 94),
        ("note_void", collected_records_are_ignored, 7),
        ("pending", old_intents_are_ignored, 14),
        ("finish", numbers_restart, 0),
        ("garbage", needed_records_are_garbage, 45),
        ("is_needed", needs_of_other_queries_are_ignored, 3),
        ("low", facts_are_dropped, 1),
    ],
)
def test_random_failures_detect_a_missing_rule(
    method: str, mutant: Any, caught_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other seeds are tried, too, in case the random histories change."""
    monkeypatch.setattr(Ledger, method, mutant)
    for seed in (caught_by, *range(200)):
        try:
            random_failures(seed)
        except (AssertionError, SurecastError):
            return
    pytest.fail(f"no seed detected the mutant of {method}")


def test_random_failures_detect_that_any_part_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "_stand", any_part_is_accepted)
    with pytest.raises(AssertionError):
        test_random_failures_of_a_job_in_parts()


class PartsInAnyDirection(Ledger):
    """A mutant: accepts a part that ends where it begins, or before."""

    def _stand(self, batch: int, intent: Intent) -> None:
        if intent.after is None:
            self.intents.setdefault(batch, intent)
        else:
            self.parts.setdefault(intent.after, (batch, intent))


@pytest.mark.parametrize("lies", LIES)
def test_the_check_fails_if_a_part_may_follow_itself(lies: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        parts_that_do_not_advance(lies, PartsInAnyDirection)


def test_the_check_fails_if_records_that_must_be_published_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "is_orphan", silence_is_sufficient)
    with pytest.raises(AssertionError):
        test_chunks_of_a_killed_driver_are_collected_by_other_queries_in_time()


def test_an_intent_of_version_0_2_0_can_be_read() -> None:
    """It has no schemas."""
    old = msgspec.msgpack.encode(["w", ["t"], [[7, 2, 0]], None, [], 5])
    intent = msgspec.msgpack.decode(old, type=Intent)
    assert intent == Intent("w", ("t",), (ChunkRef(7, 2, 0),), None, (), 5)
    assert intent.schema(0) == ""
    assert Intent("w", ("a", "b"), (), schemas=("", "n int64")).schema(1) == "n int64"
