"""What pictures share: letters, labels, endings."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import InputError
from regard.look.drawing import breadth, labelled, new_figure, number, require_ending, save, short, shown

STRANGE = "漢字 \u202eabc\u202c\x07 שלום مرحبا 😀👩\u200d👧 e\u0301 \u2028 \ue000 \U0010ffff"


def test_labels_keep_apart() -> None:
    """Eight words at one place: no label lies upon another."""
    figure = new_figure(4, 4)
    axes = figure.add_subplot()
    labelled(figure, axes, [(0.5, 0.5)] * 8, ["word"] * 8)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(boxes[one].overlaps(boxes[two]) for one in range(8) for two in range(one))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_no_letter_is_missing_from_the_fonts(tmp_path: Path, ending: str) -> None:
    """matplotlib warns of those that are, and a warning is an error here."""
    figure = new_figure(4, 2)
    axes = figure.add_subplot()
    axes.set_xticks([0, 1], labels=[shown(STRANGE), "b"])
    axes.set_ylabel(shown(STRANGE))
    save(figure, tmp_path / f"a.{ending}", STRANGE)
    assert (tmp_path / f"a.{ending}").stat().st_size > 1000


def test_fonts_that_are_installed_lend_their_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.look import drawing

    monkeypatch.setattr(drawing, "_families", lambda: ("DejaVu Sans", "STIXGeneral"))
    italic = "\N{MATHEMATICAL FRAKTUR CAPITAL W}\N{SUPERSET BESIDE SUBSET}"
    assert shown(italic) != shown("\U0010ffff\U0010ffff")
    figure = new_figure(4, 2)
    axes = figure.add_subplot()
    axes.set_xticks([0, 1], labels=[shown(italic), "b"])
    save(figure, tmp_path / "a.png", italic)
    families = [label.get_fontfamily() for label in axes.get_xticklabels()]
    assert families == [["DejaVu Sans", "STIXGeneral"]] * 2


def test_text_is_shown_as_it_is() -> None:
    assert shown("a$b$ <i>") == r"a\$b\$ <i>"
    assert shown("a\x07b\u202ec\u2028\nd") == "a\ufffdb\ufffdc\ufffd d"
    assert shown("e\u0301") == "é"


def test_lengths_and_numbers() -> None:
    assert [breadth(text) for text in ("abc", "漢字", "e\u0301", "")] == [3, 4, 1, 0]
    assert [short("abcdef", 6), short("abcdefg", 6), short("漢字漢字", 6)] == ["abcdef", "abcde…", "漢字…"]
    assert [number(None), number(-0.001), number(-1.25, 1), number(3, 3)] == ["−∞", "0.00", "−1.2", "3.000"]


def test_endings(tmp_path: Path) -> None:
    assert [require_ending(Path(name)) for name in ("a", "a.PNG", "a.b.svg", "a.pdf")] == ["png", "png", "svg", "pdf"]
    with pytest.raises(
        InputError, match=r"cannot be written \(no picture ends in \.gif\).*\.png or \.svg, or in \.pdf"
    ):
        require_ending(Path("a.gif"))
    with pytest.raises(InputError, match="cannot be written"):
        save(new_figure(1, 1), tmp_path / "none" / "a.png")
