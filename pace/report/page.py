"""The page: head, figures in sections, no script, nothing from elsewhere.

Invariants: one file that needs no network; its content follows from the runs alone, so the same logs make the same
page. In: runs. Out: HTML.
"""

from collections.abc import Callable, Sequence

from pace.report import accounts, progress, staleness
from pace.report.figure import Figure
from pace.report.frame import Size
from pace.report.overview import rows, warnings
from pace.report.palette import INK, of_run
from pace.report.reading import Run
from pace.report.style import STYLE
from pace.report.svg import Markup, html
from pace.report.trees import tree_figures

WIDE, HALF, THIRD = Size(1060, 280), Size(520, 260), Size(340, 236)
SECTIONS: Sequence[tuple[str, str, Sequence[Callable[[Sequence[Run]], Figure]]]] = (
    ("training", "Training", (progress.reward_over_steps, progress.reward_over_time, progress.evaluations)),
    (
        "staleness",
        "Staleness",
        (
            staleness.lag_split,
            staleness.kept_against_rejected,
            staleness.trained_between_runs,
            staleness.score_against_age,
            staleness.bias,
        ),
    ),
    ("pool", "Pool", (accounts.occupancy, accounts.rejection, accounts.ledger)),
    ("time", "Time", (progress.time_per_step, progress.time_over_steps)),
)
HATCH = Markup(
    '<svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
    f'<line x1="0" y1="0" x2="0" y2="6" stroke="{INK}" stroke-width="2.4"/></pattern></defs></svg>'
)


def page(runs: Sequence[Run]) -> str:
    """The whole document."""
    sections = [(anchor, title, [make(runs) for make in makers]) for anchor, title, makers in SECTIONS]
    if found := tree_figures(runs):
        sections.append(("trees", "Rollout trees", found))
    names = ", ".join(run.label for run in runs)
    head = html(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        html("title", f"{names} \N{EN DASH} run report"),
        html("style", Markup(STYLE)),
    )
    links = [html("a", title, href=f"#{anchor}") for anchor, title, _ in sections]
    body = html(
        "main",
        html("h1", "Run report" if len(runs) == 1 else f"Report on {len(runs)} runs"),
        html("p", names, class_="lead"),
        html("nav", *links),
        _table(runs),
        *[_warnings(run, named=len(runs) > 1) for run in runs],
        *[_section(*section) for section in sections],
        html("footer", "Made by python -m pace.report from ", *_sources(runs), "."),
    )
    return f"<!DOCTYPE html>\n{html('html', head, html('body', HATCH, body), lang='en')}\n"


def _table(runs: Sequence[Run]) -> Markup:
    chips = []
    for i, run in enumerate(runs):
        chip = html("span", class_="chip", style=f"background:{of_run(i)[0]}")
        chips.append(html("th", *([chip] if len(runs) > 1 else []), run.label, scope="col"))
    lines = []
    for name, texts in rows(runs):
        cells = [html("td", *_codes(text)) for text in texts]
        lines.append(html("tr", html("th", name, scope="row"), *cells))
    table = html("table", html("thead", html("tr", html("th"), *chips)), html("tbody", *lines))
    return html("div", table, class_="wide", id="overview")


def _codes(text: str) -> list[str]:
    """Flags as code, anything else as it is."""
    return [html("code", part) for part in text.split("  ")] if text.startswith("--") else [text]


def _warnings(run: Run, *, named: bool) -> str:
    found = warnings(run)
    if not found:
        return Markup("")
    return html("ul", *[html("li", f"{run.label}: {text}" if named else text) for text in found], class_="warnings")


def _section(anchor: str, title: str, figures: Sequence[Figure]) -> Markup:
    return html("section", html("h2", title), *map(_figure, figures), id=anchor)


def _figure(figure: Figure) -> Markup:
    heading = html("h3", figure.title)
    if not figure.panels:
        return html("figure", heading, html("p", figure.missing), id=figure.id, class_="missing")
    n = len(figure.panels)
    n_columns = 1 if n == 1 else 2 if n in (2, 4) else 3
    size = (WIDE, HALF, THIRD)[n_columns - 1]
    panels = []
    for panel in figure.panels:
        heads = [html("h4", panel.title)] if panel.title else []
        panels.append(html("div", *heads, panel.draw(size=size), class_="panel"))
    rows_of = html("div", *panels, class_=f"panels n{n_columns}")
    return html("figure", heading, html("figcaption", figure.caption), rows_of, id=figure.id)


def _sources(runs: Sequence[Run]) -> list[str]:
    found: list[str] = []
    for run in runs:
        found += [", "] if found else []
        found.append(html("code", str(run.path)))
    return found
