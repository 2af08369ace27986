"""Records the faults and the readers' progress of one simulated run of a swarm, and draws them.

`surecast sim SCENARIO --seed N --draw FILE` uses it:

    timeline = Timeline()
    run_seed(42, timeline=timeline)
    timeline.draw(Path("out/seed-42.png"), "seed 42")

At the top, the picture shows the faults and their durations. Below, it shows the position of every
reader in each stream. At the bottom, it shows how far each reader is behind: for how long it has
lacked an event that is already acknowledged.
"""

from collections.abc import Collection, Container
from pathlib import Path
from typing import Any, NamedTuple

from surecast.core.types import MS, SECOND
from surecast.sim.faults import (
    ClockJump,
    Crash,
    Cut,
    Damage,
    Degrade,
    DiskFailure,
    Fault,
    Isolate,
    Pause,
    Reset,
    RollBack,
    Wipe,
)
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster

__all__ = ["Timeline"]

SAMPLE_NS = 50 * MS
NAN = float("nan")
AFTER_NS = 4 * SECOND  # the drawing ends this long after healing
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # colour-blind safe
HEALED = "#1A9850"
LANES = {  # kind of fault → colour
    "server crashed": "#B2182B",
    "server stalled": "#EF8A62",
    "disk failed, damaged or lost": "#762A83",
    "server or link cut": "#333333",
    "link degraded": "#999999",
    "client crashed": "#B2182B",
    "client stalled": "#EF8A62",
    "client cut off": "#333333",
    "client's link degraded": "#999999",
    "clock or sessions": "#4393C3",
}


class Span(NamedTuple):
    begin_s: float
    end_s: float
    lane: str
    who: str


class ReaderTrack(NamedTuple):
    """One reader of one stream, from its start to its end."""

    reader: str
    times_s: list[float]
    positions: list[float]  # NAN while it was down or did not follow the stream


class Timeline:
    """Observes a run without changing it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.heal_s = 0.0
        self.regions: list[str] = []
        self.clients: Container[str] = ()  # mesh clients
        self.lines: dict[str, dict[str, ReaderTrack]] = {}  # stream → reader → its positions
        self.times_s: list[float] = []
        self.ends: dict[str, list[int]] = {}  # stream → first position not acknowledged yet

    # ------------------------------------------------------------ observing

    def watch(self, cluster: Cluster, heal_ns: int) -> None:
        self.heal_s = heal_ns / SECOND
        self.regions = list(cluster.regions)
        self.clients = cluster.clients
        self.lines = {stream: {} for stream in cluster.records}
        self.ends = {stream: [] for stream in cluster.records}

        def sample(world: World) -> None:
            self._sample(cluster, world.now_ns / SECOND)
            if world.now_ns < heal_ns + AFTER_NS:
                world.call(world.now_ns + SAMPLE_NS, sample)

        cluster.world.call(SAMPLE_NS, sample)

    def _sample(self, cluster: Cluster, now_s: float) -> None:
        self.times_s.append(now_s)
        for stream, record in cluster.records.items():
            self.ends[stream].append(max(record.acked.values(), default=0) + 1)
            lines = self.lines[stream]
            for reader in cluster.readers_of(stream) if stream in cluster.streams else ():
                line = lines.setdefault(reader, ReaderTrack(reader, [], []))
                down = cluster.world.machine(reader) is None
                away = line.times_s and now_s - line.times_s[-1] > 1.5 * SAMPLE_NS / SECOND
                position = cluster.position(reader, stream)
                line.times_s.append(now_s)
                line.positions.append(NAN if down or away or not position else position)

    def note_fault(self, fault: Fault, begin_ns: int, end_ns: int) -> None:
        """Record a fault."""
        begin_s, end_s = begin_ns / SECOND, min(end_ns / SECOND, self.heal_s)
        if isinstance(fault, ClockJump | Reset):  # these have no duration
            end_s = begin_s
        names = [getattr(fault, field) for field in ("name", "a", "b") if hasattr(fault, field)]
        arrow = " – " if getattr(fault, "two_way", True) else " → "
        lane = _lane(fault, any(name in self.clients for name in names))
        self.spans.append(Span(begin_s, end_s, lane, arrow.join(names)))

    def about(self) -> str:
        readers = {reader for lines in self.lines.values() for reader in lines}
        count = self._reader_count(readers)
        return f"{count} in {len(self.regions)} regions, {len(self.spans)} faults"

    def _reader_count(self, readers: Collection[str]) -> str:
        clients = sum(reader in self.clients for reader in readers)
        return f"{clients} mesh clients" if clients else f"{len(readers)} readers"

    # ------------------------------------------------------------ drawing

    def draw(self, path: Path, title: str) -> None:
        """Write the picture; the suffix of `path` determines its format."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        streams = [stream for stream, lines in self.lines.items() if lines]
        rows = self._rows()
        heights = [0.6 + 0.16 * len(rows), *[2.1] * len(streams), 1.8]
        figure = Figure(figsize=(10, 1.0 + sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        faults, *panels, behind = figure.subplots(
            2 + len(streams), 1, sharex=True, height_ratios=heights
        )
        self._draw_faults(faults, rows)
        for stream, axes in zip(streams, panels, strict=True):
            self._draw_positions(axes, stream)
        self._draw_behind(behind, streams)
        for axes in (*panels, behind):
            self._shade(axes)
        behind.set_xlim(0, self.times_s[-1])
        behind.set_xlabel("simulated time (s)", fontsize=9)
        figure.suptitle(title, fontsize=11)
        _legend(panels[0], self.regions)
        undated = {"Software": None} if path.suffix == ".png" else {"Date": None}
        figure.savefig(path, dpi=90, metadata=undated)

    def _rows(self) -> list[tuple[str, list[Span]]]:
        """The faults by lane, in enough rows that labels do not overlap."""
        rows: list[tuple[str, list[Span]]] = []
        letter_s = self.times_s[-1] / 160
        for lane in LANES:
            free_s: list[float] = []
            of_lane: list[list[Span]] = []
            for span in sorted(s for s in self.spans if s.lane == lane):
                row = next((i for i, s in enumerate(free_s) if s <= span.begin_s), len(free_s))
                if row == len(free_s):
                    free_s.append(0.0)
                    of_lane.append([])
                of_lane[row].append(span)
                free_s[row] = span.end_s + letter_s * (2 + len(span.who))
            rows += [(lane, spans) for spans in of_lane]
        return rows

    def _draw_faults(self, axes: Any, rows: list[tuple[str, list[Span]]]) -> None:
        labels = []
        for y, (lane, spans) in enumerate(rows):
            labels.append(lane if not y or rows[y - 1][0] != lane else "")
            for span in spans:
                width = max(span.end_s - span.begin_s, self.times_s[-1] / 300)
                axes.barh(y, width, 0.7, span.begin_s, color=LANES[lane], alpha=0.8)
                axes.text(span.begin_s + width, y, f" {span.who}", fontsize=6, va="center")
        axes.set_yticks(range(len(rows)), labels, fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title("faults, their targets and durations", fontsize=9, loc="left")
        axes.text(self.heal_s, -0.5, " all healed", color=HEALED, fontsize=8, va="bottom")
        _frame(axes, self.heal_s)

    def _draw_positions(self, axes: Any, stream: str) -> None:
        for line in self.lines[stream].values():
            client = line.reader in self.clients
            colour = COLOURS[self.regions.index(line.reader.split("/")[0])]
            axes.plot(line.times_s, line.positions, color=colour, linewidth=0.9, alpha=0.8)
            if client and line.times_s[-1] < self.times_s[-1]:
                axes.plot(line.times_s[-1], _last(line), "x", color=colour, markersize=6)
            if client:
                axes.plot(line.times_s[0], _first(line), "o", color=colour, markersize=3)
        axes.plot(self.times_s, self.ends[stream], ":", color="black", linewidth=1.2, zorder=3)
        axes.set_title(
            f"stream {stream}, {self._reader_count(self.lines[stream])}", fontsize=9, loc="left"
        )
        axes.set_ylabel("position reached", fontsize=8)
        _frame(axes, self.heal_s)

    def _draw_behind(self, axes: Any, streams: list[str]) -> None:
        peaks: list[tuple[float, float, str]] = []
        for stream in streams:
            for line in self.lines[stream].values():
                colour = COLOURS[self.regions.index(line.reader.split("/")[0])]
                waits_s = self._times_behind(line, self.ends[stream])
                axes.plot(line.times_s, waits_s, color=colour, linewidth=0.8, alpha=0.7)
                known = zip(waits_s, line.times_s, strict=True)
                peaks.append((*max(w for w in known if w[0] == w[0]), line.reader))
        named: list[float] = []
        for wait_s, time_s, reader in sorted(peaks, reverse=True)[:8]:
            if wait_s > 0.6 and all(
                abs(time_s - other_s) > self.times_s[-1] / 20 for other_s in named
            ):
                named.append(time_s)
                axes.text(time_s, wait_s, f" {reader}", fontsize=6, va="top")
        axes.set_ylim(bottom=0)
        axes.set_title("how long each reader has been behind, all streams", fontsize=9, loc="left")
        axes.set_ylabel("behind what was\nacknowledged (s)", fontsize=8)
        _frame(axes, self.heal_s)

    def _times_behind(self, line: ReaderTrack, ends: list[int]) -> list[float]:
        """For how long a reader has, at each moment, lacked an acknowledged event."""
        waits_s, since = [], 0
        for time_s, position in zip(line.times_s, line.positions, strict=True):
            while since < len(ends) - 1 and ends[since] <= position:
                since += 1
            behind_s = time_s - max(self.times_s[since], line.times_s[0])
            waits_s.append(max(0.0, behind_s) if position == position else position)
        return waits_s

    def _shade(self, axes: Any) -> None:
        for span in self.spans:
            axes.axvspan(span.begin_s, span.end_s, color=LANES[span.lane], alpha=0.05, linewidth=0)


def _frame(axes: Any, heal_s: float) -> None:
    axes.axvline(heal_s, color=HEALED, linewidth=1.5)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Any, regions: list[str]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        *(Line2D([], [], color=COLOURS[i], label=region) for i, region in enumerate(regions)),
        Line2D([], [], color="black", linestyle=":", label="acknowledged"),
        Line2D(
            [],
            [],
            color="grey",
            marker="o",
            markersize=3,
            linestyle="",
            label="client joins the stream",
        ),
        Line2D([], [], color="grey", marker="x", markersize=6, linestyle="", label="... leaves it"),
        Line2D([], [], color=HEALED, label="all healed"),
    ]
    axes.legend(handles=marks, loc="upper left", fontsize=7, ncols=2)


def _lane(fault: Fault, of_client: bool) -> str:
    who = "client" if of_client else "server"
    match fault:
        case Crash():
            return f"{who} crashed"
        case Pause():
            return f"{who} stalled"
        case Cut() | Isolate():
            return "client cut off" if of_client else "server or link cut"
        case Degrade():
            return "client's link degraded" if of_client else "link degraded"
        case DiskFailure() | Wipe() | Damage() | RollBack():
            return "disk failed, damaged or lost"
        case _:
            assert isinstance(fault, ClockJump | Reset), fault
            return "clock or sessions"


def _first(line: ReaderTrack) -> float:
    return next((p for p in line.positions if p == p), NAN)


def _last(line: ReaderTrack) -> float:
    return next((p for p in reversed(line.positions) if p == p), NAN)
