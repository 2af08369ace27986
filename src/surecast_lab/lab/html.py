"""Builds the HTML of the lab's pages as a tree of elements, which escapes texts and closes tags.

    page("Title", [el("h1", "a < b"), el("p", "see ", el("a", "there", href="x.html"))])

Pages are self-contained: they include their style, fetch nothing and run no script. They follow the
browser's light or dark mode and fit the width of the window; a table or figure that is wider
scrolls in its own box.
"""

from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

__all__ = ["Child", "el", "page"]

Child = Element | str | None


def el(tag: str, *children: Child, **attributes: str) -> Element:
    """An element; `class_` and `data_label` become class and data-label."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    made = Element(tag, named)
    for child in children:
        if isinstance(child, str):
            _append_text(made, child)
        elif child is not None:
            made.append(child)
    return made


def _append_text(parent: Element, text: str) -> None:
    text = text.replace(" ± ", "\u00a0±\u00a0")  # non-breaking spaces: no line break between them
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def page(title: str, body: Iterable[Child]) -> str:
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", STYLE),
    )
    root = el("html", head, el("body", el("main", *body)), lang="en")
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html")


STYLE = """
:root {
  --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --card: #f6f8fa;
  --link: #0a58ca; --good: #116329; --good-back: #dafbe1; --bad: #a40e26; --bad-back: #ffebe9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --soft: #9aa4ae; --line: #3d444d; --back: #0d1117; --card: #161b22;
    --link: #6cb6ff; --good: #7ee2a8; --good-back: #12361f; --bad: #ffa198; --bad-back: #45191c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--back); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 66rem; margin: 0 auto; padding: 1rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.8rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p, ul, dl { margin: 0.5rem 0; }
ul { padding-left: 1.3rem; }
a { color: var(--link); }
code { font: 0.88em ui-monospace, "DejaVu Sans Mono", monospace; background: var(--card);
  padding: 0.1em 0.3em; border-radius: 4px; }
.soft { color: var(--soft); }
.small { font-size: 0.88rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; font-size: 0.95rem; }
.lead { font-size: 1.1rem; }
.badge { display: inline-block; padding: 0.05rem 0.55rem; border-radius: 1rem; font-size: 0.88rem;
  white-space: nowrap; border: 1px solid var(--line); background: var(--card); }
.yes { color: var(--good); background: var(--good-back); border-color: transparent; }
.no { color: var(--bad); background: var(--bad-back); border-color: transparent; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.95rem; overflow-wrap: break-word; }
th, td { text-align: left; vertical-align: top; padding: 0.45rem 0.7rem 0.45rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { overflow-wrap: normal; white-space: nowrap; }
table.index > thead th:nth-child(1) { width: 20%; }
table.index > thead th:nth-child(2), table.index > thead th:nth-child(3) { width: 32%; }
table table { font-size: 1em; }
table table tr:last-child > * { border-bottom: 0; }
table.numbers { width: auto; }
table.numbers th { font-weight: 500; }
table.numbers th, table.numbers td { padding-right: 1.4rem; overflow-wrap: normal; }
.range { color: var(--soft); font-size: 0.85em; white-space: nowrap; }
.number { white-space: nowrap; }
figure { margin: 1rem 0; }
figure .scroll { background: #ffffff; border: 1px solid var(--line); border-radius: 6px; }
figure img { display: block; width: 100%; min-width: 44rem; height: auto; }
figure.narrow img { max-width: 46rem; min-width: 34rem; margin: 0 auto; }
figcaption { font-size: 0.88rem; color: var(--soft); margin-top: 0.4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1.2rem; }
dt { color: var(--soft); }
dd { margin: 0; }
@media (max-width: 42rem) {
  h1 { font-size: 1.35rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.5rem; }
  table.cards, table.cards > tbody, table.cards > tbody > tr, table.cards > tbody > tr > td,
  table.cards > tbody > tr > th { display: block; }
  table.cards > thead { display: none; }
  table.cards > tbody > tr { border: 1px solid var(--line); border-radius: 8px;
    background: var(--card); padding: 0.6rem 0.8rem; margin: 0.7rem 0; }
  table.cards > tbody > tr > td, table.cards > tbody > tr > th { border: 0; padding: 0.2rem 0; }
  table.cards > tbody > tr > td[data-label]::before { content: attr(data-label); display: block;
    color: var(--soft); font-size: 0.82rem; }
  table.cards > tbody > tr > td.flag::before { display: inline; margin-right: 0.5rem; }
}
@media print { nav { display: none; } }
"""
