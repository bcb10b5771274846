"""The page's views of vectors and positions are drawn in the form that the file's ending asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_cases import decoder, vision
from tiny_models import write_encoder

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.atlas import atlas
from regard.look.drawn_maps import nearness_picture, positions_picture, vectors_picture
from regard.look.nearness import placed

pytestmark = pytest.mark.slow

BEGIN = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
TEXTS = ["the dog and $a_^ cat", "the dog\x1b is <b>running</b>"]


@pytest.mark.parametrize("ending", BEGIN)
def test_pictures(tmp_path: Path, ending: str) -> None:
    found = atlas(regard.load(write_encoder(tmp_path / "model"), "cpu"), TEXTS)
    files = [tmp_path / f"{number}.{ending}" for number in range(6)]
    vectors_picture(found, files[0], "dog", [0, 2], "a $title")
    vectors_picture(found, files[1], layers=[1])
    sines = placed(regard.build(decoder(position=blocks.Sinusoidal())), 8)
    positions_picture(sines, files[2])
    nearness_picture(sines, files[3], "near")
    positions_picture(placed(regard.build(decoder(position=blocks.Alibi())), 8), files[4])
    nearness_picture(placed(regard.build(vision())), files[5])
    assert all(file.read_bytes().startswith(BEGIN[ending]) for file in files)
    with pytest.raises(InputError, match=r"layers \(\[0, 1\]\) must be one, from 0 to 2"):
        vectors_picture(found, files[0], layers=[0, 1])


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    nothing = placed(regard.build(decoder(position=blocks.NoPosition())), 8)
    with pytest.raises(InputError, match=r"position.kind \(none\) leaves nothing to draw"):
        positions_picture(nothing, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"position.kind \(alibi\) has no vectors of places; positions_picture"):
        nearness_picture(placed(regard.build(decoder(position=blocks.Alibi())), 8), tmp_path / "a.png")
