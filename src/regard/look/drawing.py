"""What pictures share: figures, files by their ending, letters that fonts have, labels that keep apart.

matplotlib is only imported when something is drawn.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from regard.errors import InputError
from regard.files import write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = ("png", "svg", "pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which those see apart who see red and green alike."""
MARKERS = "osD^vPX"
INK = "#1b2430"
GREY = "#6b6b6b"
LINE = "#d8dee4"
LETTER = 5.5
"""About how wide a letter of a label is, in points."""
LONGEST = 24
"""Letters of a name beside a map."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
FONTS = (
    *("Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAGothic"),
    *("Microsoft YaHei", "SimHei", "MS Gothic", "Yu Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans"),
    *("Apple SD Gothic Neo", "Arial Unicode MS", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari"),
    *("Noto Sans Thai", "Nirmala UI", "Tahoma", "Noto Sans Symbols", "Noto Sans Symbols 2", "Segoe UI Symbol"),
    *("Noto Emoji", "Symbola"),
)
"""Where letters are looked for that the usual font lacks; those that are installed are used."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that belongs to no window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib; install it: pip install 'regard[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def require_ending(path: Path) -> str:
    """The form that a file's ending asks for; one without an ending is a PNG."""
    form = path.suffix.removeprefix(".").lower() or "png"
    if form not in ENDINGS:
        raise InputError(
            f"{path} cannot be written (no picture ends in {path.suffix}); choose another file, ending in .png or "
            ".svg, or in .pdf"
        )
    return form


def save(figure: Figure, path: Path, title: str = "") -> None:
    """Writes a figure as PNG, SVG or PDF, by the file's ending."""
    import matplotlib

    form = require_ending(path)
    if title:
        figure.suptitle(shown(title), fontsize=12)
    _lend_fonts(figure)
    try:
        # Publishers refuse the fonts that matplotlib embeds if it is not told otherwise.
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            write_beside(path, lambda partial: figure.savefig(partial, format=form, dpi=150, bbox_inches="tight"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be written ({error}); choose another file, ending in .png or .svg, or in .pdf"
        ) from None


# ----------------------------------------------------------------------------------------------------------------- text


def shown(text: str) -> str:
    """Text as it is: a dollar sign would begin a formula, and what no font has cannot be drawn."""
    drawable = _letters(_families())
    found = (
        letter if ord(letter) in drawable and unicodedata.category(letter) not in _SHAPELESS else UNKNOWN
        for letter in unicodedata.normalize("NFC", text.replace("\t", " ").replace("\n", " "))
    )
    return "".join(found).replace("$", r"\$")


_SHAPELESS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of what takes up no room, or turns other letters round."""


def short(text: str, most: float) -> str:
    """Text that is cut where it is longer than so many letters; East Asian ones count twice."""
    if breadth(text) <= most:
        return text
    kept = ""
    for letter in text:
        if breadth(kept + letter) > most - 1:
            break
        kept += letter
    return f"{kept}…"


def breadth(text: str) -> int:
    """How wide a text is, in letters: East Asian ones count twice, combining ones not at all."""
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text if not unicodedata.combining(letter)
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number for people; none: what may not be seen."""
    return "−∞" if value is None else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """The fonts that can be drawn with, by name; the first is the usual one."""
    from matplotlib import font_manager

    usual = font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).family_name
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return (usual, *(name for name in FONTS if name in installed and name != usual))


@lru_cache(maxsize=8)
def _letters(families: tuple[str, ...]) -> frozenset[int]:
    """All that some fonts can draw."""
    from matplotlib import font_manager

    files = (font_manager.findfont(font_manager.FontProperties(family=[name])) for name in families)
    return frozenset().union(*(font_manager.get_font(file).get_charmap() for file in files))


def _lend_fonts(figure: Figure) -> None:
    """Lets every text of a figure fall back on other fonts, where there are some."""
    families = list(_families())
    if len(families) == 1:
        return
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontfamily(families)
    for axes in figure.axes:
        axes.tick_params(labelfontfamily=families)


# ----------------------------------------------------------------------------------------------------------------- axes


def plain(axes: Axes) -> None:
    """A quiet grid, and no frame above and on the right."""
    axes.grid(color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def sheet(figure: Figure, width: float, height: float) -> Axes:
    """Axes without any marks, in inches from the upper left, over a figure of this size."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return axes


def heat(
    axes: Axes, values: Tensor, extent: tuple[float, float, float, float], aspect: Literal["auto", "equal"]
) -> None:
    """A heat map with its scale: two colours around zero, one where nothing is below it."""
    least, most = float(values.min()), float(values.max())
    bound = max(-least, most) or 1.0
    colours, low, high = ("RdBu_r", -bound, bound) if least < 0 else ("viridis", least, most)
    drawn = axes.imshow(
        values.numpy(), colours, vmin=low, vmax=high, aspect=aspect, interpolation="nearest", extent=extent
    )
    axes.figure.colorbar(drawn, ax=axes)


def name_ticks(axes: Axes, rows: Sequence[str], above: Sequence[str], every: tuple[int, int] = (1, 1)) -> None:
    """Names of the rows on the left and of the columns above; of many, every so many."""
    down, across = range(0, len(rows), every[0]), range(0, len(above), every[1])
    axes.set_yticks(down, labels=[short(shown(rows[place]), LONGEST) for place in down])
    names = [short(shown(above[place]), LONGEST) for place in across]
    axes.set_xticks(across, labels=names, rotation=45, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def labelled(figure: Figure, axes: Axes, points: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """Writes beside each point, where the least else stands: the nearest of some places around it that is free."""
    figure.draw_without_rendering()  # only then is it known where points lie
    scale = figure.dpi / 72
    spots = [tuple(axes.transData.transform((point[0], point[1])) / scale) for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    for (x, y), point, label in zip(spots, points, labels, strict=True):
        width, height = LETTER * len(label), 1.3 * LETTER
        around = [
            (math.cos(turn) * (far + width / 2), math.sin(turn) * (far + height / 2))
            for far in (6, 12, 18, 26)
            for turn in (math.pi / 4 * step for step in (1, 7, 3, 5, 0, 2, 4, 6))
        ]
        boxes = [
            (x + right - width / 2, y + up - height / 2, x + right + width / 2, y + up + height / 2)
            for right, up in around
        ]
        best = min(range(len(boxes)), key=lambda place: (sum(_overlap(boxes[place], other) for other in taken), place))
        taken.append(boxes[best])
        axes.annotate(
            label, (point[0], point[1]), around[best], textcoords="offset points", fontsize=8, ha="center", va="center"
        )


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The area that two boxes share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)
