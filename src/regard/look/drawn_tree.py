"""Decoding as a picture: what could have come at each step, and the tree of a beam search with what it dropped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.decoding.settings import Absolute, Beam, Rules
from regard.decoding.tree import Tree
from regard.errors import InputError
from regard.look.answers import token_name
from regard.look.drawing import COLOURS, GREY, INK, LINE, new_figure, number, save, sheet, short, shown
from regard.look.stepwise import Choosing, Steps, grow_tree, write_stepwise, written
from regard.look.study import Run, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEAM = 4
OPTIONS = 5
"""Candidates of a step that are drawn."""
MOST = 16
"""Steps that are drawn; of more, the rest is only counted."""
LONGEST = 48
"""Tokens that are written at the most."""
STEP, BOX, ROW = 1.16, 1.0, 0.4
LEFT = 0.72
BEST, END = COLOURS[0], COLOURS[1]


@dataclass(frozen=True)
class Grown:
    """A beam search with its texts."""

    tree: Tree
    labels: list[str]
    """Of each node."""
    texts: list[str]
    """Of each result."""
    beam: int


def decode_picture(study: Study, run: Run, path: Path, at: str = "", title: str = "") -> None:
    """Both parts of decoding, by the model's own probabilities: each step's candidates, and the beam search below."""
    if at:
        raise InputError(f"at ({at[:40]}) names a head, and decoding is shown for the whole model; leave it out")
    rules = Rules(longest=Absolute(tokens=LONGEST))
    steps = write_stepwise(study, run, Choosing(rules=rules))
    tree = grow_tree(study, run, Beam(size=BEAM, nbest=BEAM), rules)
    names = [token_name(study.loaded, node.token) for node in tree.nodes]
    texts = [written(study, each.tokens) for each in tree.found]
    decoding_picture(steps, Grown(tree, names, texts, BEAM), path, title)


def decoding_picture(steps: Steps, grown: Grown, path: Path, title: str = "") -> None:
    """Steps and a tree, a column for each step."""
    last = max((node.step for node in grown.tree.nodes), default=0) + 1
    across = min(max(len(steps.steps), last), MOST)
    width = max(LEFT + across * STEP + 0.1, 7.0)
    upper = 1.0 + OPTIONS * 0.27
    ranks = _ranks(grown.tree)
    deep = max(ranks.values(), default=0) + 1
    lower = 0.75 + deep * ROW
    found = 0.3 + 0.24 * len(grown.texts)
    top = 0.5 if title else 0.1
    figure = new_figure(width, top + upper + lower + found + 0.2)
    figure.set_layout_engine("none")
    axes = sheet(figure, width, top + upper + lower + found + 0.2)
    if title:
        axes.text(width / 2, 0.3, shown(title), fontsize=14, ha="center", va="center", color=INK)
    letters = int(9 * width)
    _draw_steps(axes, steps, letters, top)
    _draw_tree(axes, grown, ranks, top + upper)
    _draw_found(axes, grown, letters, top + upper + lower)
    save(figure, path)


def _head(axes: Axes, title: str, says: str, y: float) -> None:
    heading = axes.text(0.1, y + 0.16, title, fontsize=11, weight="bold", va="center", color=INK)
    axes.annotate(says, (1, 0.5), (10, 0), xycoords=heading, textcoords="offset points", fontsize=8, va="center",
                  color=GREY, annotation_clip=False)  # fmt: skip


def _draw_steps(axes: Axes, steps: Steps, letters: int, y: float) -> None:
    more = f", and {len(steps.steps) - MOST} further steps" if len(steps.steps) > MOST else ""
    _head(axes, "Step by step", f"the likeliest token is taken; bars are probabilities{more}", y)
    axes.text(0.1, y + 0.46, shown(short(steps.text, letters)), fontsize=10, va="center", color=INK)
    for place, step in enumerate(steps.steps[:MOST]):
        x = LEFT + place * STEP
        axes.text(x, y + 0.72, f"{place + 1}", fontsize=7.5, va="center", color=GREY)
        for line, option in enumerate(step.options[:OPTIONS]):
            at = y + 0.84 + line * 0.27
            chosen = option.id == step.token.id
            _rectangle(axes, (x, at, BOX, 0.22), "#f6f8fa", BEST if chosen else LINE, 1.4 if chosen else 0.6)
            _rectangle(axes, (x, at, BOX * option.chance, 0.22), "#b7d1ea", "none", 0)
            axes.text(x + 0.05, at + 0.115, short(shown(option.text), 10), fontsize=7.5, va="center", color=INK)
            axes.text(x + BOX - 0.04, at + 0.115, _chance(option.chance), fontsize=6.5, va="center", ha="right",
                      color=GREY)  # fmt: skip


def _chance(value: float) -> str:
    return "<.001" if 0 < value < 0.0005 else f"{value:.3f}".removeprefix("0") if value < 1 else "1"


def _ranks(tree: Tree) -> dict[int, int]:
    """Of each node that is drawn, its place in its column."""
    counts: dict[int, int] = {}
    ranks = {}
    for place, node in enumerate(tree.nodes):
        if node.step < MOST:
            ranks[place] = counts.get(node.step, 0)
            counts[node.step] = ranks[place] + 1
    return ranks


def best_path(tree: Tree) -> set[int]:
    """The nodes that lead to the best result."""
    if not tree.found:
        return set()
    score = tree.found[0].score
    ends = [
        place
        for place, node in enumerate(tree.nodes)
        if node.fate == "finished" and node.score is not None and abs(node.score - score) < 1e-6
    ]
    ends = ends or [place for place, node in enumerate(tree.nodes) if node.fate == "open"]
    return set(tree.path(ends[-1])) if ends else set()


def _draw_tree(axes: Axes, grown: Grown, ranks: dict[int, int], y: float) -> None:
    says = "log-probability so far; at an end (=), the score after the length penalty; what was dropped is pale"
    hidden = len(grown.tree.nodes) - len(ranks)
    says += f"; {hidden} more behind step {MOST}" if hidden else ""
    _head(axes, f"Beam search, {grown.beam} wide", says, y)
    best, start = best_path(grown.tree), y + 0.5
    _rectangle(axes, (0.1, start, 0.46, 0.32), "#f6f8fa", LINE, 0.8)
    axes.text(0.33, start + 0.165, "start", fontsize=7.5, ha="center", va="center", color=INK)
    for place, rank in ranks.items():
        node = grown.tree.nodes[place]
        x, at = LEFT + node.step * STEP, start + rank * ROW
        before = (0.56, start) if node.parent is None else (
            LEFT + (node.step - 1) * STEP + BOX, start + ranks[node.parent] * ROW
        )  # fmt: skip
        on, pale = place in best, node.fate == "dropped"
        _curve(axes, (before[0], before[1] + 0.16), (x, at + 0.16), on, pale)
        edge = END if node.fate == "finished" else BEST if on else LINE
        _rectangle(axes, (x, at, BOX, 0.32), "#ffffff" if pale else "#f6f8fa", edge, 1.5 if on or edge == END else 0.7)
        ink, soft = ("#a4abb4", "#b9bfc7") if pale else (INK, GREY)
        axes.text(x + 0.06, at + 0.105, short(shown(grown.labels[place]), 14), fontsize=7.5, va="center", color=ink)
        told = number(node.total, 3) if node.score is None else f"= {number(node.score, 3)}"
        axes.text(x + 0.06, at + 0.235, told, fontsize=6.3, va="center", color=soft)


def _draw_found(axes: Axes, grown: Grown, letters: int, y: float) -> None:
    for place, (text, found) in enumerate(zip(grown.texts, grown.tree.found, strict=True)):
        at = y + 0.2 + place * 0.24
        axes.text(0.1, at, f"{place + 1}", fontsize=8, va="center", color=GREY)
        axes.text(LEFT, at, number(found.score, 3), fontsize=8, va="center", ha="right", color=GREY)
        cut = "" if found.finished else " … (cut)"
        colour = BEST if place == 0 else INK
        axes.text(LEFT + 0.12, at, f"{shown(short(text, letters))}{cut}", fontsize=9, va="center", color=colour)


def _rectangle(axes: Axes, box: tuple[float, float, float, float], fill: str, edge: str, line: float) -> None:
    from matplotlib.patches import Rectangle

    x, y, wide, high = box
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=fill, edgecolor=edge, lw=line))


def _curve(axes: Axes, begin: tuple[float, float], end: tuple[float, float], on: bool, pale: bool) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Line

    bend = (end[0] - begin[0]) / 2
    points = [begin, (begin[0] + bend, begin[1]), (end[0] - bend, end[1]), end]
    line = Line(points, [Line.MOVETO, Line.CURVE4, Line.CURVE4, Line.CURVE4])
    colour = BEST if on else "#e4e8ed" if pale else "#c3cad2"
    axes.add_patch(
        PathPatch(line, facecolor="none", edgecolor=colour, lw=2.0 if on else 0.8, zorder=0.9 if on else 0.8)
    )
