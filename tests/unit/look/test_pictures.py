"""Pictures of vectors and positions are written in the form that the file's ending asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from family_cases import encoder, vision

from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look import pictures
from regard.look.positions import DistanceScores, distance_scores, encodings
from regard.look.table import one_of_n
from regard.look.vectors import Anisotropy, Place, Similarity, find, map_of

pytestmark = pytest.mark.slow

PLACES = (find("The bank of the river", "bank"), find("Money, $5_^ in the bank", "bank"), find("An apple\x1b", "apple"))
BEGIN = {"png": b"\x89PNG", "svg": b"<?xml"}


def similarity(places: tuple[Place, ...]) -> Similarity:
    pairs = tuple((one, two) for two in range(len(places)) for one in range(two))
    layers = torch.rand(3, len(pairs), generator=torch.Generator().manual_seed(0))
    return Similarity(places, pairs, layers, torch.ones(len(pairs)), Anisotropy(torch.rand(3), 0.1, 9))


@pytest.mark.parametrize("ending", BEGIN)
def test_vectors_are_drawn(tmp_path: Path, ending: str) -> None:
    drawn = [tmp_path / f"{name}.{ending}" for name in ("few", "many", "map", "words")]
    pictures.similarity_picture(similarity(PLACES), drawn[0], "a $title")
    pictures.similarity_picture(similarity(PLACES * 2), drawn[1])
    maps = [map_of(torch.eye(3)[:, :2] * size) for size in (0, 1, 2)]
    pictures.map_picture(maps, PLACES, drawn[2], [0, 1, 2])
    pictures.words_picture(one_of_n(["king", "queen", "man"]), ["king", "queen"], drawn[3], [("king", "queen")])
    assert all(path.read_bytes().startswith(BEGIN[ending]) for path in drawn)


def test_positions_are_drawn(tmp_path: Path) -> None:
    for number, position in enumerate((blocks.Sinusoidal(), blocks.Rotary(), blocks.TransformerXL())):
        pictures.encodings_picture(encodings(encoder(position=position), 8), tmp_path / f"{number}.png")
    pictures.encodings_picture(encodings(vision(position=blocks.Sinusoidal2d())), tmp_path / "3.png")
    pictures.distance_picture(distance_scores(encoder(position=blocks.Alibi()), 8), tmp_path / "4.png")
    many = DistanceScores("relative", torch.arange(-3, 4), torch.zeros(20, 7))
    pictures.distance_picture(many, tmp_path / "5.png")
    assert len([path for path in tmp_path.iterdir() if path.read_bytes().startswith(BEGIN["png"])]) == 6


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"layers \(\[3\]\) must be at most 8, from 0 to 0"):
        pictures.map_picture([map_of(torch.eye(3))], PLACES, tmp_path / "a.png", [3])
    found = similarity(PLACES)
    with pytest.raises(InputError, match=r"cannot be written.*\.png or \.svg"):
        pictures.similarity_picture(found, tmp_path / "a.nothing")
    with pytest.raises(InputError, match=r"word \(duke\)"):
        pictures.words_picture(one_of_n(["king"]), ["king"], tmp_path / "a.png", [("king", "duke")])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="pictures need matplotlib"):
        pictures.similarity_picture(found, tmp_path / "a.png")
