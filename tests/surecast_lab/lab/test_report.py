"""The book of results: well-formed, complete, escaped, and readable on a phone."""

import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.programs import needs

from surecast.errors import UsageError
from surecast_lab.lab.html import el, page
from surecast_lab.lab.report import write_book
from surecast_lab.lab.verdict import Experiment, Verdict, spread

VOID = {"meta", "img", "br"}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (1400).to_bytes(4, "big") + (700).to_bytes(4, "big")
EVIL = "<script>alert('&amp;')</script>"


class Checked(HTMLParser):
    """Fails on a tag that is not closed in its place; collects links, pictures and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words += data.replace("\u00a0", " ")


def experiment(name: str, **changes: str) -> Experiment:
    texts = {"title": f"Title of {name}", "question": "Why?", "setup": "So.", "paper": "Because."}
    return Experiment(
        id=name,
        **(texts | changes),
        by={},
        values={},
        points=lambda *_: [],
        run_point=lambda _: [],
        verdict_of=lambda _: None,
        draw=lambda *_: None,
    )


def verdict(name: str, **changes: object) -> Verdict:
    made = {
        "id": name,
        "headline": "seven of them",
        "paper": {"share_saved": 0.85, "shape": "rises", "unanswered": "yes"},
        "ours": {
            "share_saved": spread([0.84, 0.86, 0.85]),
            "shape": {"first": {"r0": spread([1.0, 2.0]), "r1": 3}, "then": {"r0": 4, "r1": None}},
            "claims": {"it rises": True, "it_falls": False, "it stays": None},
            "sources": ["a to b", "b to a"],
            "nothing": {},
            "long_name_" * 12: {"x" * 90: 123_456_789.0},
        },
        "reproduced": True,
        "beaten": False,
        "scale": "small",
        "seeds": [1, 2, 3],
        "notes": ["A reading."],
        "points": 9,
        "points_s": 500.0,
        "commit": "c0ffee",
        "date": "2026-01-01T00:00:00+00:00",
        "ran": "Spark, local[2]",
        "machine": {"cpu": "Fast", "cores": 2, "memory_gb": 4, "system": "S", "python": "3"},
    }
    return Verdict(**(made | changes))


def leave(out: Path, one: Experiment, result: Verdict) -> None:
    files = one.files(out)
    out.mkdir(exist_ok=True)
    files["verdict"].write_bytes(result.to_json())
    files["figure"].write_bytes(PNG)


@pytest.fixture
def book(tmp_path):
    """Three experiments, of which the second was not run."""
    ones = [experiment("one"), experiment("two"), experiment("three", title=EVIL, paper=EVIL)]
    leave(tmp_path / "lab", ones[0], verdict("one"))
    hostile = verdict("three", headline=EVIL, notes=[EVIL], scale=EVIL, quick=True, seeds=[1])
    hostile.ours[EVIL] = {EVIL: EVIL}
    leave(tmp_path / "lab", ones[2], hostile)
    return write_book(ones, tmp_path / "lab", tmp_path / "report")


def test_every_page_is_well_formed_and_every_link_leads_somewhere(book):
    pages = [book.index, *book.pages]
    assert [path.name for path in pages] == ["index.html", "one.html", "three.html"]
    for path in pages:
        found = Checked(path.read_text("utf-8"))
        assert found.links, path
        for link in found.links:
            assert "://" not in link
            assert (path.parent / link).exists(), f"{path.name} → {link}"
        assert "script" not in found.tags
        assert 'name="viewport"' in path.read_text()


def test_nothing_is_fetched_from_elsewhere(book):
    for path in (book.index, *book.pages):
        text = path.read_text("utf-8")
        assert "http:" not in text
        assert "https:" not in text
        assert "@import" not in text
        assert "url(" not in text


def test_texts_are_escaped(book):
    three = next(path for path in book.pages if path.name == "three.html")
    raw = three.read_text("utf-8")
    assert "<script>" not in raw
    assert Checked(raw).words.count(EVIL) >= 5


def test_the_index_has_every_experiment_and_the_command_for_missing_ones(book):
    words = Checked(book.index.read_text("utf-8")).words
    assert "2 of 3 experiments run; 2 reproduced, 0 beaten" in words
    assert "seven of them" in words
    assert "not run yet: surecast lab run two" in words
    assert book.missing == ["two"]


def test_an_experiment_without_a_figure_to_beat_does_not_mention_it(tmp_path):
    ones = [experiment("one"), experiment("two")]
    leave(tmp_path / "lab", ones[0], verdict("one", beaten=None))
    leave(tmp_path / "lab", ones[1], verdict("two"))
    made = write_book(ones, tmp_path / "lab", tmp_path / "report")
    for path, says in zip(made.pages, (False, True), strict=True):
        assert ("not beaten" in Checked(path.read_text("utf-8")).words) == says


def test_a_page_has_all_parts_of_a_verdict(book):
    words = Checked(book.pages[0].read_text("utf-8")).words
    for text in (
        "Why?", "So.", "Because.", "0.85 ± 0.025 [0.84, 0.86]", "share saved", "it falls",
        "not judged", "A reading.", "1, 2, 3", "c0ffee", "Fast", "Spark, local[2]", "8 min",
        "surecast lab run one --seeds 3", "95 % confidence", "see the verdict", "→ three",
    ):  # fmt: skip
        assert text in words, text
    quick = Checked(book.pages[1].read_text("utf-8")).words
    assert "a quick run" in quick
    assert "One seed, so there are no confidence intervals" in quick


def test_an_old_verdict_is_refused_with_what_to_do(tmp_path):
    one = experiment("one")
    leave(tmp_path, one, verdict("one"))
    one.files(tmp_path)["verdict"].write_text('{"id": "one"}')
    with pytest.raises(UsageError, match="surecast lab run one"):
        write_book([one], tmp_path, tmp_path / "report")


def test_the_checker_finds_a_malformed_page():
    assert Checked(page("x", [el("p", "a", el("b", "c"), "d")])).words.strip() == "xacd"
    with pytest.raises(AssertionError):
        Checked("<html><p>never closed</html>")


# The width that a page needs, measured by Chromium in a frame as wide as the window of the device.
# The pages have no script, so the page around the frame measures.
PROBE = """<!doctype html><body style="margin:0"><iframe src="{page}" style="width:{width}px;
height:800px;border:0" onload="
  const root = this.contentDocument.documentElement;
  const inside = element => element.closest('.scroll') === null;
  const wide = [...root.querySelectorAll('body *')].filter(inside)
    .filter(element => element.getBoundingClientRect().right > {width} + 0.5);
  document.title = 'needs ' + root.scrollWidth + ', ' + wide.length + ' stick out';
"></iframe></body>"""


def room_needed(folder: Path, name: str, width: int) -> str:
    """The text of the probe: the width of the page, and the number of elements that stick out."""
    chromium = needs("chromium")
    probe = folder / f"probe-{width}-{name}"
    probe.write_text(PROBE.format(page=name, width=width))
    words = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'chromium'}", "--virtual-time-budget=5000", "--dump-dom",
        probe.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    title = shown.partition("<title>")[2].partition("</title>")[0]
    assert title.startswith("needs "), shown[:500]
    return title


@pytest.mark.slow
@pytest.mark.parametrize(
    "width",
    [
        390,
        pytest.param(768, marks=pytest.mark.nightly),
        pytest.param(1280, marks=pytest.mark.nightly),
    ],
)
def test_pages_fit_the_window(book, width):
    for path in (book.index, book.pages[0]):
        assert room_needed(path.parent, path.name, width) == f"needs {width}, 0 stick out"


@pytest.mark.slow
def test_the_probe_finds_elements_that_do_not_fit(tmp_path):
    (tmp_path / "wide.html").write_text(page("x", [el("p", "x", style="width: 700px")]))
    assert room_needed(tmp_path, "wide.html", 390) == "needs 716, 1 stick out"
