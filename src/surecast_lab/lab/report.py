"""`surecast lab report`: the results of the experiments as static pages.

There is an index, and a page for each experiment: its question, the set-up, the paper's numbers
beside ours, the figure, the verdict, and when, where and from which commit it was run. The pages
are made only from the verdicts and figures in a folder, so they can be written at any time after
the runs.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import msgspec

from surecast.errors import UsageError
from surecast_lab.lab.html import Child, el, page
from surecast_lab.lab.verdict import Experiment, Verdict, number, short

__all__ = ["Book", "write_book"]

TITLE = "The lab: papers’ experiments, run again"
CLAIMS = "claims"  # the entry of `Verdict.ours` that says which claims hold
WIDE = 2.0  # a figure with at least this ratio of width to height gets the full width


@dataclass(frozen=True, slots=True)
class Book:
    index: Path
    pages: list[Path]  # one for each experiment with a result
    missing: list[str]  # the ids of experiments without a result


def write_book(experiments: Sequence[Experiment], out_dir: Path, to: Path) -> Book:
    """Write the pages into `to`, figures beside them."""
    verdicts = {one.id: _load(one, out_dir) for one in experiments}
    to.mkdir(parents=True, exist_ok=True)
    written = [(one, v) for one in experiments if (v := verdicts[one.id]) is not None]
    pages = []
    for place, (one, verdict) in enumerate(written):
        (to / "figures").mkdir(exist_ok=True)
        figure = one.files(out_dir)["figure"]
        shutil.copyfile(figure, to / "figures" / f"{one.id}.png")
        # The experiments before and after this one; None at the begin and at the end of the list.
        before, after = written[place - 1 : place], written[place + 1 : place + 2]
        around = [link[0][0] if link else None for link in (before, after)]
        pages.append(to / f"{one.id}.html")
        pages[-1].write_text(_experiment(one, verdict, around, _is_wide(figure)), "utf-8")
    index = to / "index.html"
    index.write_text(_index(experiments, verdicts), "utf-8")
    return Book(index, pages, [name for name, verdict in verdicts.items() if verdict is None])


def _load(experiment: Experiment, out_dir: Path) -> Verdict | None:
    """The verdict of a run, if there is one with its figure."""
    files = experiment.files(out_dir)
    if not files["verdict"].exists() or not files["figure"].exists():
        return None
    try:
        return msgspec.json.decode(files["verdict"].read_bytes(), type=Verdict)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{files['verdict']} is not a verdict of this version ({error}); make it again: "
            f"surecast lab run {experiment.id}"
        ) from None


def _is_wide(figure: Path) -> bool:
    """Whether a figure is so wide that it gets the full width of the page. Only the size of PNG
    files is known."""
    head = figure.read_bytes()[:24]
    # In a PNG file, width and height are numbers of 4 bytes at offsets 16 and 20.
    width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    return head[:4] == b"\x89PNG" and (width >= WIDE * height or width >= 1000)


# ---------------------------------------------------------------- the index


def _index(experiments: Sequence[Experiment], verdicts: Mapping[str, Verdict | None]) -> str:
    found = [verdict for verdict in verdicts.values() if verdict is not None]
    heads = ("experiment", "the paper", "ours", "reproduced", "beaten")
    rows = [_index_row(one, verdicts[one.id]) for one in experiments]
    table = el(
        "table",
        el("thead", el("tr", *(el("th", head, scope="col") for head in heads))),
        el("tbody", *rows),
        class_="cards index",
    )
    held = sum(verdict.reproduced for verdict in found)
    beaten = sum(verdict.beaten is True for verdict in found)
    about = (
        f"{len(found)} of {len(experiments)} experiments run; {held} reproduced, {beaten} beaten."
    )
    explained = (
        "Reproduced: every claim of the paper holds, as the notes on the experiment’s page "
        "interpret it. Beaten: better than the paper, by the measure that the notes define. "
        "Numbers are means over seeds ± half the width of their 95 % confidence interval, then in "
        "brackets the smallest and the largest value of a seed."
    )
    body = [
        el("h1", TITLE),
        el("p", about, class_="lead"),
        el("div", table, class_="scroll"),
        el("p", explained, class_="soft small"),
    ]
    return page(TITLE, body)


def _index_row(experiment: Experiment, verdict: Verdict | None) -> Element:
    if verdict is None:
        command = el("code", f"surecast lab run {experiment.id}")
        return el(
            "tr",
            el("th", experiment.title, scope="row"),
            el("td", experiment.paper, data_label="the paper"),
            el("td", "not run yet: ", command, data_label="ours"),
            el("td", "–", data_label="reproduced", class_="flag"),
            el("td", "–", data_label="beaten", class_="flag"),
        )
    link = el("a", experiment.title, href=f"{experiment.id}.html")
    quick: list[Child] = [" ", el("span", "quick", class_="badge")] if verdict.quick else []
    return el(
        "tr",
        el("th", link, *quick, scope="row"),
        el("td", experiment.paper, data_label="the paper"),
        el("td", verdict.headline, data_label="ours"),
        el("td", _badge(verdict.reproduced), data_label="reproduced", class_="flag"),
        el("td", _badge(verdict.beaten, bad=False), data_label="beaten", class_="flag"),
    )


def _badge(holds: bool | None, bad: bool = True, words: tuple[str, str] = ("yes", "no")) -> Element:
    """A label: "yes" in green, "no" (in red if `bad`), or a dash for None."""
    if holds is None:
        return el("span", "–")
    if holds:
        return el("span", words[0], class_="badge yes")
    return el("span", words[1], class_="badge no" if bad else "badge")


# ---------------------------------------------------------------- an experiment


def _experiment(
    experiment: Experiment, verdict: Verdict, around: Sequence[Experiment | None], wide: bool
) -> str:
    image = f"figures/{experiment.id}.png"
    rest = {  # measurements that belong to none of the paper's claims
        claim: value
        for claim, value in verdict.ours.items()
        if claim not in verdict.paper and claim != CLAIMS
    }
    body = [
        _navigation(around),
        el("h1", experiment.title),
        el("p", *_badges(verdict)),
        el("p", verdict.headline[:1].upper() + verdict.headline[1:] + ".", class_="lead"),
        *_section("Question", el("p", experiment.question)),
        *_section("Set-up", el("p", experiment.setup), el("p", verdict.scale, class_="soft")),
        *_section("The paper", el("p", experiment.paper)),
        *_section("The paper’s numbers and ours", _beside(verdict)),
        *_section("Figure", _figure(experiment, verdict, image, wide)),
        *_section("Verdict", *_verdict(verdict)),
        *(_section("Further measurements", _value(rest)) if rest else []),
        *_section("Notes", el("ul", *(el("li", note) for note in verdict.notes))),
        *_section("The run", _provenance(verdict)),
    ]
    return page(f"{experiment.title} – {TITLE}", body)


def _navigation(around: Sequence[Experiment | None]) -> Element:
    links: list[Child] = [el("a", "All experiments", href="index.html")]
    for arrow, one in zip(("←", "→"), around, strict=True):
        if one is not None:
            links.append(el("a", f"{arrow} {one.id}", href=f"{one.id}.html"))
    return el("nav", *links)


def _section(title: str, *children: Child) -> list[Child]:
    return [el("h2", title), *children]


def _badges(verdict: Verdict) -> list[Child]:
    made: list[Child] = [_badge(verdict.reproduced, words=("reproduced", "not reproduced")), " "]
    if verdict.beaten is not None:
        made += [_badge(verdict.beaten, bad=False, words=("beaten", "not beaten"))]
    if verdict.quick:
        made += [" ", el("span", "a quick run: small numbers, for a first look", class_="badge")]
    return made


def _beside(verdict: Verdict) -> Element:
    """A table of the paper's claims and numbers, with ours beside them."""
    heads = ("claim", "paper", "ours")
    rows = [
        el(
            "tr",
            el("th", _words(claim), scope="row"),
            el("td", short(said), data_label="paper"),
            el("td", _value(verdict.ours[claim]), data_label="ours")
            if claim in verdict.ours
            else el("td", "see the verdict", class_="soft", data_label="ours"),
        )
        for claim, said in verdict.paper.items()
    ]
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in heads)))
    return el("div", el("table", head, el("tbody", *rows), class_="cards"), class_="scroll")


def _figure(experiment: Experiment, verdict: Verdict, image: str, wide: bool) -> Element:
    seeds = len(verdict.seeds)
    bands = (
        f"Means of {seeds} seeds; bands and bars are 95 % confidence intervals (Student’s t). "
        if seeds > 1
        else "One seed, so there are no confidence intervals. "
    )
    picture = el("img", src=image, alt=f"{experiment.title}: {verdict.headline}")
    full = el("a", "The figure by itself", href=image)
    return el(
        "figure",
        el("div", picture, class_="scroll"),
        el("figcaption", bands, full, "."),
        **({} if wide else {"class_": "narrow"}),
    )


def _verdict(verdict: Verdict) -> list[Child]:
    words = "Reproduced" if verdict.reproduced else "Not reproduced"
    words += {True: ", and beaten.", False: ", not beaten.", None: "."}[verdict.beaten]
    claims = msgspec.to_builtins(verdict.ours.get(CLAIMS))
    if not isinstance(claims, dict):
        return [el("p", words)]
    items = [
        el("li", _badge(holds) if holds is not None else "not judged", " ", _words(claim))
        for claim, holds in claims.items()
    ]
    return [el("p", words), el("ul", *items)]


def _provenance(verdict: Verdict) -> Element:
    """When, where and how the experiment was run, and the command that repeats it."""
    machine = verdict.machine
    seeds = ", ".join(map(str, verdict.seeds))
    pairs = {
        "seeds": seeds,
        "points": f"{verdict.points:,}, one seed each",
        "time": f"{_duration(verdict.points_s)} for all points together; the last run took "
        f"{_duration(verdict.wall_s)}",
        "ran": verdict.ran,
        "commit": verdict.commit or "outside a repository",
        "date": verdict.date,
        "machine": ", ".join(
            str(part)
            for part in (
                machine.get("cpu"),
                f"{machine.get('cores')} cores",
                f"{machine.get('memory_gb')} GB",
                machine.get("system"),
                f"Python {machine.get('python')}",
            )
        ),
    }
    command = f"surecast lab run {verdict.id} --seeds {len(verdict.seeds)}"
    command += " --quick" if verdict.quick else ""
    children: list[Child] = []
    for name, text in pairs.items():
        children += [el("dt", name), el("dd", text)]
    children += [el("dt", "to repeat it"), el("dd", el("code", command))]
    return el("dl", *children)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{number(seconds, 3)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# ---------------------------------------------------------------- values


def _value(value: Any) -> Element:
    """A value of a verdict as HTML: a spread, a table of spreads, a list, a word."""
    plain = msgspec.to_builtins(value)
    if _is_spread(plain):
        return _spread(plain)
    if isinstance(plain, bool):
        return _badge(plain, bad=False)
    if isinstance(plain, dict) and plain:
        return _table(plain)
    if plain in ({}, []):
        return el("span", "–")
    if isinstance(plain, list) and any(isinstance(item, str) for item in plain):
        return el("ul", *(el("li", short(item)) for item in plain), class_="small")
    return el("span", short(plain))


def _is_spread(plain: Any) -> bool:
    return isinstance(plain, dict) and {"mean", "min", "max"} <= plain.keys()


def _spread(plain: dict[str, Any]) -> Element:
    about = "" if plain.get("ci95") is None else f" ± {number(plain['ci95'], 2)}"
    span = el("span", f"[{number(plain['min'])}, {number(plain['max'])}]", class_="range")
    middle = el("span", f"{number(plain['mean'])}{about}", class_="number")
    return el("span", middle, " ", span if plain.get("n", 2) > 1 else None)


def _table(plain: dict[str, Any]) -> Element:
    """A table with a row per key; if all rows have the same keys, these are columns."""
    inner = [  # for each row that has columns: their names
        tuple(row) if isinstance(row, dict) and not _is_spread(row) else None
        for row in plain.values()
    ]
    if len(plain) > 1 and inner[0] is not None and len(set(inner)) == 1:
        head = el("tr", el("td"), *(el("th", _words(name), scope="col") for name in inner[0]))
        rows = [
            el(
                "tr",
                el("th", _words(name), scope="row"),
                *(el("td", _value(v)) for v in columns.values()),
            )
            for name, columns in plain.items()
        ]
        made = el("table", el("thead", head), el("tbody", *rows), class_="numbers")
        return el("div", made, class_="scroll")
    rows = [
        el("tr", el("th", _words(name), scope="row"), el("td", _value(item)))
        for name, item in plain.items()
    ]
    return el("div", el("table", el("tbody", *rows), class_="numbers"), class_="scroll")


def _words(name: str) -> str:
    return name.replace("_", " ")
