"""Image folders, idx files and NumPy archives: what is read, and what cannot be."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.examples import Picture, excerpt
from regard.data.settings import DataSettings, Idx, ImageFolder, Npz
from regard.data.sources import Source
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(settings: DataSettings) -> str:
    with pytest.raises(DataError) as caught:
        list(Source(settings, "train"))
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------- folders


def paint(file: str, colour: tuple[int, int, int], size: tuple[int, int] = (4, 3)) -> None:
    image = pytest.importorskip("PIL.Image")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, colour).save(file)


def test_a_folder_for_each_class() -> None:
    paint("a/red/2.png", (255, 0, 0))
    paint("a/red/1.bmp", (200, 0, 0))
    paint("a/blue/x.png", (0, 0, 255), size=(2, 5))
    found: list[Any] = list(Source(ImageFolder(train=["a"]), "train"))
    assert [(picture.label, picture.pixels.shape) for picture in found] == [
        ("blue", (5, 2, 3)),
        ("red", (3, 4, 3)),
        ("red", (3, 4, 3)),
    ]
    assert found[1].pixels[0, 0].tolist() == [200, 0, 0]
    grey: list[Any] = list(Source(ImageFolder(train=["a"], colours="grey"), "train"))
    # ITU-R 601: L = 0.299 R + 0.587 G + 0.114 B
    assert [int(picture.pixels[0, 0, 0]) for picture in grey] == [29, 60, 76]


def test_sixteen_bits_become_eight() -> None:
    image = pytest.importorskip("PIL.Image")
    Path("a/x").mkdir(parents=True)
    image.fromarray(np.array([[0, 255, 30_000, 65_535]], np.uint16)).save("a/x/1.png")
    (found,) = Source(ImageFolder(train=["a"], colours="grey"), "train")
    assert isinstance(found, Picture)
    assert found.pixels[0, :, 0].tolist() == [0, 0, 30_000 >> 8, 255]


def test_an_image_that_does_not_decode_is_skipped_and_counted() -> None:
    paint("a/red/1.png", (255, 0, 0))
    Path("a/red/2.png").write_bytes(Path("a/red/1.png").read_bytes()[:40])
    Path("a/red/3.png").write_text("no image", encoding="utf-8")
    Path("a/red/.hidden").write_text("not looked at", encoding="utf-8")
    source = Source(ImageFolder(train=["a"]), "train")
    assert len(list(source)) == 1
    (reason,) = source.problems.reasons
    told = source.problems.reasons[reason]
    assert reason == "does not decode as an image"
    assert told.count == 2
    assert told.first[1] == f"{Path('a/red/3.png')} (it is no image)"
    assert refused(ImageFolder(train=["a"], bad="stop")).startswith(
        f"{Path('a/red/2.png')} does not decode as an image ("
    )


def test_folders_that_hold_no_images() -> None:
    Path("empty").mkdir()
    assert refused(ImageFolder(train=["empty"])) == (
        "empty has no folder inside; an image folder needs one for each class, named by it"
    )
    assert refused(ImageFolder(train=["none"])) == (
        "none is not a folder; give one that has a folder of images for each class"
    )
    assert refused(ImageFolder(train=["-"])) == "an image folder cannot come from standard input; name the folder"


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert refused(ImageFolder(train=["a"])) == (
        "reading image files needs Pillow; install it: pip install 'regard[vision]'"
    )


# ----------------------------------------------------------------------------------------------------------- idx files


def idx(file: str, array: np.ndarray, packed: bool = False) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    Path(file).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(packed: bool) -> None:
    pixels = np.arange(24).reshape(2, 3, 4)
    idx("images", pixels, packed)
    idx("labels", np.array([7, 0]), packed)
    found: list[Any] = list(Source(Idx(train=["images", "labels"]), "train"))
    assert [picture.label for picture in found] == ["7", "0"]
    assert np.array_equal(found[1].pixels[:, :, 0], pixels[1])
    assert found[0].pixels.shape == (3, 4, 1)


def test_idx_in_colour() -> None:
    idx("images", np.zeros((1, 2, 2, 3)))
    idx("labels", np.array([1]))
    (found,) = Source(Idx(train=["images", "labels"]), "train")
    assert isinstance(found, Picture)
    assert found.pixels.shape == (2, 2, 3)


def test_bad_idx_files() -> None:
    idx("images", np.zeros((2, 3, 4)))
    idx("labels", np.array([7, 0, 1]))
    settings = Idx(train=["images", "labels"])
    assert refused(settings) == "images has 2 images, but labels has 3 labels; they must be as many"
    assert refused(settings.changed({"train": ["labels", "images"]})) == (
        "labels is no idx file of images: it begins with 00 00 08 01, not with 00 00 08 03; data.train, valid and test "
        "name images first, then labels"
    )
    idx("labels", np.array([7, 0]))
    Path("images").write_bytes(Path("images").read_bytes()[:-1])
    assert refused(settings) == "images ends before the number of images that its head gives; fetch it again"


# ------------------------------------------------------------------------------------------------------ NumPy archives


def test_npz() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.savez("a.npz", x=pixels, y=np.array([3, 4]))
    found: list[Any] = list(Source(Npz(train=["a.npz"], pixels="x", label="y"), "train"))
    assert [(picture.label, picture.pixels.shape) for picture in found] == [("3", (3, 4, 1)), ("4", (3, 4, 1))]
    assert np.array_equal(found[1].pixels[:, :, 0], pixels[1])
    assert excerpt(found[0]) == "pixels of 12 bytes"


def test_bad_archives() -> None:
    pixels = np.zeros((2, 3, 4), dtype=np.uint8)
    np.savez("a.npz", images=pixels, labels=np.array([1]), floats=np.zeros((2, 3, 4)))
    settings = Npz(train=["a.npz"])
    assert refused(settings) == (
        "a.npz has 2 images, but labels has the shape [1]; it must have one label for each image"
    )
    assert refused(settings.changed({"label": "classes"})) == (
        "a.npz has no array classes; it has images, labels, floats: choose with data.pixels and data.label"
    )
    assert refused(settings.changed({"pixels": "floats"})) == (
        "a.npz: floats is float64 of shape [2, 3, 4]; it must be uint8 of shape [n, height, width] or "
        "[n, height, width, channels]"
    )
    Path("a.npz").write_bytes(b"no archive")
    assert refused(settings).startswith("a.npz is no NumPy archive (.npz): ")


def test_no_pickle_is_executed() -> None:
    np.savez("a.npz", images=np.array([{}], dtype=object), labels=np.array([1]))
    assert refused(Npz(train=["a.npz"])).startswith("a.npz is no NumPy archive (.npz): Object arrays cannot be loaded")
