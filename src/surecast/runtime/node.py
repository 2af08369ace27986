"""A node: runs one state machine over real sockets, by the rules of `core.types`.

    book = AddressBook({"b": ("127.0.0.1", 7401)})
    node = Node("a", make_machine, book=book, codec=codec, listen=("127.0.0.1", 7400))
    await node.start()
    node.give(Publish(batch))
    await node.stop()

The node reacts to received bytes, expired timers, completed disk writes, and commands of its owner
(the program that created it). Its reaction is a *pass*: the node calls the state machine's `step`
with each input in turn and performs the returned effects, which may add further inputs. When no
input is left, the node writes all messages that the machine has sent, with one write per peer. The
machine is never stepped while an effect is performed. Every input goes through `Node.step`, which
also calls the recorder.

If the machine raises an exception, that is a bug in Surecast. The node then stops as if its process
had been killed, and tasks that await `failed` get the exception. The recording ends with the input
of that step.
"""

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

from surecast.core.machine import Factory, NodeContext
from surecast.core.states import watched
from surecast.core.types import (
    Append,
    AtEndOfPass,
    Batch,
    CancelTimer,
    Close,
    Compact,
    Compacted,
    Congested,
    Deliver,
    Emit,
    EndOfPass,
    Input,
    LogId,
    Machine,
    Peer,
    PeerDown,
    PeerUp,
    Read,
    Repair,
    SaveState,
    Send,
    SetTimer,
    Start,
    TimerKey,
    Truncate,
    Writable,
    listed,
    protocol_of,
)
from surecast.core.wire import Codec
from surecast.errors import ConfigError, UsageError
from surecast.runtime import hello
from surecast.runtime.addresses import (
    Address,
    AddressBook,
    bind,
    check_listen,
    own_address,
    with_address,
)
from surecast.runtime.session import RuntimeLimits
from surecast.runtime.sessions import Sessions
from surecast.runtime.tcp import Connection, UnknownMessages
from surecast.runtime.timers import ClockWatch, Timers
from surecast.runtime.udp import Datagrams
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import MemoryStore, Store

__all__ = ["Node", "Recorder"]

log = logging.getLogger("surecast.runtime")


class Recorder(Protocol):
    """Records the inputs and effects of a node. `runtime.recorder.Recorder` implements it."""

    def step(self, now_ns: int, inp: Any, effects: list[Any]) -> None: ...

    def close(self, *, orderly: bool = True) -> None: ...


class Node:
    """One state machine over real sockets (see the module). All methods must be called in the
    event loop's thread.

    `factory` creates the state machine. `book` has the addresses of peers. `listen` is the address
    at which the node accepts connections (port 0: the system chooses one; None: it accepts none).
    `seed` determines the machine's random numbers. `region`, `role`, `epoch` and `credential` (the
    token) are sent in the Hello. `insecure` allows connections beyond this computer, without
    encryption. `on_deliver` is called with the batches of a Deliver effect, `on_emit` with the
    event of an Emit.
    """

    loop: asyncio.AbstractEventLoop
    machine: Machine
    speaks: tuple[str, ...]  # the protocols listed in our Hello
    sessions: Sessions
    timers: Timers
    datagrams: Datagrams

    def __init__(
        self,
        name: Peer,
        factory: Factory,
        *,
        book: AddressBook,
        codec: Codec,
        listen: Address | None = ("127.0.0.1", 0),
        disk: Store | MemoryDisk | None = None,
        seed: object = 0,
        region: str = "",
        role: str = "",
        credential: str = "",
        epoch: Callable[[], int] = lambda: 0,
        limits: RuntimeLimits | None = None,
        insecure: bool = False,
        recorder: Recorder | None = None,
        validate: bool = False,
        on_deliver: Callable[[LogId, tuple[Batch, ...]], None] | None = None,
        on_emit: Callable[[Any], None] | None = None,
    ) -> None:
        if listen is not None:
            check_listen(listen[0], insecure)
        # `start` may replace port 0 in the name by a longer number: leave room for it.
        if not 0 < len(name.encode()) <= hello.NAME_LEN_MAX - 8:
            raise ConfigError(f"a node's name has 1 to {hello.NAME_LEN_MAX - 8} bytes: {name!r}")
        self.name = name
        self.book = book
        self.codec = codec
        self.limits = limits or RuntimeLimits()
        self.store: Store = (
            MemoryStore(disk) if disk is None or isinstance(disk, MemoryDisk) else disk
        )
        self.counters: Counter[str] = Counter()
        self.unknown = UnknownMessages(name, self.counters)
        self.address: Address | None = None  # the address at which it listens, once started
        self.pending: deque[Any] = deque()  # inputs for the next steps of the machine
        self.failed: asyncio.Future[None]  # gets the exception if the machine raises one
        self.running = False
        self._factory = factory
        self._listen = listen
        self._seed = seed
        self._about = (region, epoch, role, credential)  # for the Hello
        self._insecure = insecure
        self._recorder = recorder
        # In tests: whether to check states and invariants of the machine and of sessions
        # (`core.states`), and how often each transition between states has occurred.
        self.validate = validate
        self.met: Counter[str] = Counter()
        self._on_deliver = on_deliver
        self._on_emit = on_emit
        self._server: asyncio.Server | None = None
        self._clock = ClockWatch(self.limits.clock_jump_ns)
        self._scheduled = False  # whether `post` has scheduled a pass that has not begun yet
        self._endings: dict[TimerKey, None] = {}  # keys of the AtEndOfPass effects of this pass
        self._step: Callable[[int, Any], list[Any]]

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Listen, create the machine and step it with Start.

        If the node's name contains port 0, it is replaced by the port chosen by the system.
        """
        self.loop = asyncio.get_running_loop()
        self.failed = self.loop.create_future()
        tcp, udp = bind(self._listen, self._insecure)
        try:
            if tcp is not None:
                self.address = tcp.getsockname()[:2]
                if (carried := own_address(self.name)) is not None and carried[1] == 0:
                    self.name = with_address(self.name, (carried[0], self.address[1]))
            incarnation = self.store.incarnation
            rng = Random(f"{self._seed}/{self.name}/{incarnation}")
            context = NodeContext(self.name, rng, self.store.disk, incarnation)
            self.machine = self._factory(context)
        except BaseException:
            for sock in (tcp, udp):
                if sock is not None:
                    sock.close()
            raise
        self._begin(udp, Start(self._clock.start(), incarnation))
        if tcp is not None:
            self._server = await self.loop.create_server(
                lambda: Connection(self.sessions, None), sock=tcp, backlog=512
            )
        if self.failed.done():
            self._stop_listening()
            self.failed.result()

    def _begin(self, udp: socket.socket, start: Start) -> None:
        # Machines in tests may have no `messages`: then the Hello lists the protocols of all types.
        self._step = watched(self.machine, self.met) if self.validate else self.machine.step
        self.speaks = listed(getattr(self.machine, "messages", self.codec.types))
        self.sessions = Sessions(self, Random())
        self.datagrams = Datagrams(self, udp)
        self.timers = Timers(self.loop, self._fire)
        self.store.attach(self._wake)
        self._watch = self.loop.call_later(1, self._watch_clock)
        self.running = True
        self.pending.append(start)
        self.settle()

    async def stop(self) -> None:
        """Handle the inputs that are queued now, but no later ones. Write the messages that the
        machine has sent and the data that it has stored, then close.

        Messages for a peer without an established session are lost, because the peer may never be
        reachable.
        """
        if self.running:
            self.settle()
        if self.running:  # checked again, because the machine may have failed in `settle`
            self._halt()
            await self.sessions.drain()
            self.sessions.abort()
        self._stop_listening()
        await self.loop.run_in_executor(None, self.store.close)
        self._stop_recording(orderly=True)

    def kill(self) -> None:
        """End like a killed process: queues are not written, and connections are reset."""
        if self.running:
            self._halt()
            self.sessions.abort()
            self._stop_listening()
            self._stop_recording(orderly=False)

    def _halt(self) -> None:
        """End everything except the sessions, the listening socket, the store and the recording."""
        self.running = False
        self.pending.clear()
        self.timers.cancel_all()
        self.datagrams.close()
        self._watch.cancel()

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _stop_recording(self, orderly: bool) -> None:
        if self._recorder is not None:
            self._recorder.close(orderly=orderly)
            self._recorder = None

    def fail(self, problem: Exception) -> None:
        """Stop after an exception in a pass or in the store. `failed` gets the exception."""
        if not self.running:
            return
        log.critical("%s stops: %r", self.name, problem, exc_info=problem)
        self.kill()
        self.failed.set_exception(problem)
        self.failed.exception()  # prevents asyncio's warning if nobody awaits it

    # ------------------------------------------------------------ inputs

    def give(self, inp: Input) -> None:
        """Queue a command of the node's owner for the machine, in the current pass or a new one.
        `give` itself does not step the machine, so `on_deliver` and `on_emit` may call it."""
        self.post(inp)

    def post(self, inp: Any) -> None:
        """Add an input to the current pass, or to a new pass that begins soon."""
        self._post(len(self.pending), inp)

    def post_down(self, peer: Peer) -> None:
        """Queue PeerDown when a session has ended: right after the last queued session event of
        this peer, or first if there is none. Messages that the machine sends from now on go into
        the next session, so the machine must get PeerDown before it handles other inputs."""
        at = 0
        for after, waiting in enumerate(self.pending, 1):
            if type(waiting) in _SESSION_EVENTS and waiting.peer == peer:
                at = after
        self._post(at, PeerDown(peer))

    def _post(self, at: int, inp: Any) -> None:
        """Insert an input into `pending` at index `at`, and schedule a pass if necessary."""
        if self.running:
            self.pending.insert(at, inp)
            if not self._scheduled:
                self._scheduled = True
                self.loop.call_soon(self._soon)

    def post_congested(self, inp: Congested) -> None:
        """Queue a Congested right after the last queued session event of the same peer, or first if
        there is none. The machine must get it before inputs for which it would send more to this
        peer."""
        if not self.running:
            return
        place = 0
        for number, waiting in enumerate(self.pending):
            if type(waiting) in _SESSION_EVENTS and waiting.peer == inp.peer:
                place = number + 1
        self.post(inp)
        self.pending.insert(place, self.pending.pop())

    def _soon(self) -> None:
        self._scheduled = False
        self.settle()

    def _fire(self, fired: Any) -> None:
        """Run a pass with this input (of a timer or the clock)."""
        self.pending.append(fired)
        self.settle()

    def _end_pass(self) -> None:
        """Step the machine with an EndOfPass for each AtEndOfPass that it has requested."""
        endings, self._endings = self._endings, {}
        if self.running:
            self.pending.extend(map(EndOfPass, endings))
            self.settle()

    def _wake(self) -> None:
        """Called by the store, from any thread, when it has inputs for the machine."""
        with suppress(RuntimeError):  # the event loop is closed already
            self.loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        """Run a pass with the inputs of the store, such as Stored."""
        if self.running:
            try:
                self.pending.extend(self.store.collect())
            except Exception as problem:
                self.fail(problem)
            self.settle()

    def _watch_clock(self) -> None:
        """Called every second: tell the machine if the wall clock was changed."""
        self._watch = self.loop.call_later(1, self._watch_clock)
        changed = self._clock.look()
        if changed is not None:
            self.counters["clock_sets"] += 1
            self._fire(changed)

    def settle(self) -> None:
        """Run a pass: until no input is left and all sent messages are written."""
        sessions, datagrams = self.sessions, self.datagrams
        try:
            while True:
                if self.pending:
                    self.run_pending()
                if not sessions.dirty and not datagrams.out:
                    return
                sessions.flush()
                datagrams.flush()
        except Exception as problem:
            self.fail(problem)

    def run_pending(self) -> None:
        pending = self.pending
        while pending:
            self.step(pending.popleft())

    def step(self, inp: Any) -> None:
        """Step the machine with one input; the only place where this happens."""
        if not self.running:
            return
        if type(inp) is Compacted:  # from this step on, the log shows the result of the compaction
            self.store.show(inp)
        now_ns = time.monotonic_ns()
        try:
            effects = self._step(now_ns, inp)
        except Exception:
            if self._recorder is not None:
                with suppress(Exception):  # report the machine's exception, not the recorder's
                    self._recorder.step(now_ns, inp, [])
            raise
        if self._recorder is not None:
            self._recorder.step(now_ns, inp, effects)
        if not effects:
            return
        sessions = self.sessions
        encoded = buffers = None  # the last message that was encoded, and its bytes
        nbytes = 0
        protocol = ""
        for effect in effects:
            kind = type(effect)
            if kind is not Send:
                _PERFORM[kind](self, effect)
                if not self.running:  # `on_deliver` or `on_emit` has stopped the node
                    return
                continue
            peer = effect.peer
            if effect.message is not encoded:  # a message to several peers is encoded only once
                encoded = effect.message
                protocol = _PROTOCOL[type(encoded)]
                buffers = self.codec.encode(encoded)
                nbytes = sum(map(len, buffers))
            assert buffers is not None
            session = sessions.by_peer.get(peer)
            if session is not None and session.speaks is not None:
                if protocol not in session.speaks:
                    self.counters["not_spoken"] += 1
                    continue
            if not effect.reliable:
                self.datagrams.send(peer, buffers, nbytes)
                continue
            if session is None:
                session = self._open(peer)
            if session.closing:  # the message belongs to the next session
                session.after += buffers
                session.after_bytes += nbytes
            else:
                if session.speaks is None:  # not known yet: `drop_unspoken` may drop it later
                    session.early.append((protocol, len(buffers), nbytes))
                session.out += buffers
                session.queued += nbytes
            if not session.dirty:
                session.dirty = True
                sessions.dirty.append(session)
            if session.queued > self.limits.high_water_bytes:
                # Write now and not at the end of the pass, because that may show that the peer does
                # not read. Then the machine gets Congested before its next input.
                sessions.relieve(session)

    # ------------------------------------------------------------ effects

    def _open(self, peer: Peer) -> Any:
        if peer == self.name:
            raise UsageError(f"{self.name} sends to itself")
        return self.sessions.opening.open(peer)

    def find(self, peer: Peer) -> Address | None:
        """The address of a peer, or None (`AddressBook.find`)."""
        return self.book.find(peer, self._insecure)

    def hello(self, to: Peer, life: bytes, attempt: int) -> hello.Hello:
        """The Hello of this node to a peer."""
        region, epoch, role, credential = self._about
        return hello.Hello(
            hello.VERSION,
            self.name,
            to,
            life,
            attempt,
            region,
            epoch(),
            role,
            credential,
            self.speaks,
        )

    def _close(self, effect: Close) -> None:
        self.sessions.close(effect.peer)

    def _set_timer(self, effect: SetTimer) -> None:
        self.timers.set(effect.key, effect.at_ns)

    def _at_end_of_pass(self, effect: AtEndOfPass) -> None:
        if not self._endings:
            # EndOfPass comes one turn of the event loop later: messages sent so far are written,
            # and bytes that have arrived and timers that have expired are handled first. So what is
            # one pass for the machine can be several calls of `settle`.
            self.loop.call_soon(self._end_pass)
        self._endings[effect.key] = None

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self.timers.cancel(effect.key)

    def _save(self, effect: Any) -> None:
        """Perform an effect that changes or reads the disk."""
        self.store.perform(effect)

    def _deliver(self, effect: Deliver) -> None:
        if self._on_deliver is not None:
            self._on_deliver(effect.stream, effect.batches)

    def _emit(self, effect: Emit) -> None:
        if self._on_emit is not None:
            self._on_emit(effect.event)


class _Protocols(dict[type, str]):
    """The protocol of each message type, computed when it is first needed."""

    def __missing__(self, kind: type) -> str:
        self[kind] = protocol = protocol_of(kind)
        return protocol


_PROTOCOL = _Protocols()

_SESSION_EVENTS = frozenset((PeerUp, PeerDown, Congested, Writable))  # the events of a session


class _Table(dict[type, Callable[[Node, Any], None]]):
    """The method that performs each type of effects."""

    def __missing__(self, kind: type) -> Callable[[Node, Any], None]:
        raise UsageError(f"{kind.__name__} is not an effect that the runtime performs")


_PERFORM = _Table(
    {
        Close: Node._close,
        SetTimer: Node._set_timer,
        AtEndOfPass: Node._at_end_of_pass,
        CancelTimer: Node._cancel_timer,
        Append: Node._save,
        Repair: Node._save,
        Truncate: Node._save,
        Compact: Node._save,
        Read: Node._save,
        SaveState: Node._save,
        Deliver: Node._deliver,
        Emit: Node._emit,
    }
)
