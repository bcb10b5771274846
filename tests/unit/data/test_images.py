"""Image folders, idx files and NumPy archives: valid and invalid files."""

from __future__ import annotations

import gzip
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.examples import excerpt
from regard.data.images import read_image
from regard.data.settings import DataSettings, Idx, ImageFolder, Npz
from regard.data.source import Source
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(settings: DataSettings) -> list[Any]:
    return list(Source(settings, "train"))


def paint(file: str, colour: tuple[int, int, int], size: tuple[int, int] = (4, 3)) -> None:
    image = pytest.importorskip("PIL.Image")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, colour).save(file)


def test_a_folder_for_each_class() -> None:
    paint("a/red/2.png", (255, 0, 0))
    paint("a/red/1.bmp", (200, 0, 0))
    paint("a/blue/x.png", (0, 0, 255), size=(2, 5))
    found = read(ImageFolder(train=["a"]))
    assert [(picture.label, picture.pixels.shape) for picture in found] == [
        ("blue", (5, 2, 3)),
        ("red", (3, 4, 3)),
        ("red", (3, 4, 3)),
    ]
    assert found[1].pixels[0, 0].tolist() == [200, 0, 0]
    grey = read(ImageFolder(train=["a"], colours="grey"))
    # ITU-R 601: L = 0.299 R + 0.587 G + 0.114 B
    assert [int(picture.pixels[0, 0, 0]) for picture in grey] == [29, 60, 76]
    image = pytest.importorskip("PIL.Image")
    Path("b/x").mkdir(parents=True)
    image.fromarray(np.array([[0, 255, 30_000, 65_535]], np.uint16)).save("b/x/1.png")  # 16 bits become 8
    (deep,) = read(ImageFolder(train=["b"], colours="grey"))
    assert deep.pixels[0, :, 0].tolist() == [0, 0, 30_000 >> 8, 255]


def test_bad_images_and_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    paint("a/red/1.png", (255, 0, 0))
    Path("a/red/2.png").write_bytes(Path("a/red/1.png").read_bytes()[:40])
    Path("a/red/3.png").write_text("no image", encoding="utf-8")
    image = pytest.importorskip("PIL.Image")
    for name in ("4.eps", "5.dds"):
        image.new("RGB", (8, 8)).save(f"a/red/{name}")
    Path("a/red/4.eps").rename("a/red/4.png")  # Pillow would start Ghostscript
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("a program is started"))
    damaged = bytearray(Path("a/red/5.dds").read_bytes())
    damaged[84:88] = b"ZZZZ"
    Path("a/red/6.dds").write_bytes(damaged)
    Path("a/red/.hidden").write_text("not looked at", encoding="utf-8")
    source = Source(ImageFolder(train=["a"]), "train")
    assert len(list(source)) == 1
    ((reason, skipped),) = source.problems.items()
    assert (reason, skipped["count"]) == ("does not decode as an image", 5)
    assert skipped["first"][1].startswith(f"{Path('a/red/3.png')} (not one of PNG, JPEG,")
    with pytest.raises(DataError, match=r"2\.png does not decode .*data\.bad"):
        read(ImageFolder(train=["a"], bad="stop"))
    for file in ("a/red/3.png", "a/red", "a/none.png"):
        with pytest.raises(DataError, match=Path(file).name):
            read_image(Path(file), "rgb")
    Path("empty").mkdir()
    for folder, message in [("empty", "no subfolders"), ("none", "not a folder")]:
        with pytest.raises(DataError, match=message):
            read(ImageFolder(train=[folder]))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"Pillow.*regard\[vision\]"):
        read(ImageFolder(train=["a"]))


def idx(file: str, array: np.ndarray, packed: bool = False) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    Path(file).write_bytes(gzip.compress(data) if packed else data)


def test_idx() -> None:
    pixels = np.arange(24).reshape(2, 3, 4)
    for packed in (False, True):
        idx("images", pixels, packed)
        idx("labels", np.array([7, 0]), packed)
        found = read(Idx(train=["images", "labels"]))
        assert [picture.label for picture in found] == ["7", "0"]
        assert np.array_equal(found[1].pixels[:, :, 0], pixels[1])
        assert found[0].pixels.shape == (3, 4, 1)
    idx("images", np.zeros((2, 2, 2, 3)))
    assert read(Idx(train=["images", "labels"]))[0].pixels.shape == (2, 2, 3)


def test_bad_idx_files() -> None:
    idx("images", np.zeros((2, 3, 4)))
    idx("labels", np.array([7, 0, 1]))
    settings = Idx(train=["images", "labels"])
    with pytest.raises(DataError, match="images has 2 images, but labels has 3 labels"):
        read(settings)
    with pytest.raises(DataError, match="begins with 00 00 08 01, expected 00 00 08 03"):
        read(settings.changed({"train": ["labels", "images"]}))
    idx("labels", np.array([7, 0]))
    Path("images").write_bytes(Path("images").read_bytes()[:-1])
    with pytest.raises(DataError, match="shorter than its header says"):
        read(settings)
    for sizes in ((2**32 - 1, 2**32 - 1), (0, 28), (2**31, 2**33 % 2**32), (65_536, 65_536)):
        Path("images").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, *sizes) + bytes(100))
        with pytest.raises(DataError, match=f"images: its header says images of {sizes[0]} × {sizes[1]} bytes"):
            read(settings)


def test_npz() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.savez("a.npz", x=pixels, y=np.array([3, 4]))
    found = read(Npz(train=["a.npz"], pixels="x", label="y"))
    assert [(picture.label, picture.pixels.shape) for picture in found] == [("3", (3, 4, 1)), ("4", (3, 4, 1))]
    assert np.array_equal(found[1].pixels[:, :, 0], pixels[1])
    assert excerpt(found[0]) == "pixels of 12 bytes"


def test_bad_archives() -> None:
    np.savez("a.npz", images=np.zeros((2, 3, 4), np.uint8), labels=np.array([1]), floats=np.zeros((2, 3, 4)))
    for changes, message in [
        ({}, r"labels has shape \[1\], expected \[2\]"),
        ({"label": "classes"}, r"no array classes.*data\.label"),
        ({"pixels": "floats"}, "floats is float64"),
    ]:
        with pytest.raises(DataError, match=message):
            read(Npz(train=["a.npz"]).changed(changes))
    Path("a.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a NumPy archive"):
        read(Npz(train=["a.npz"]))
    for shape in ("(9223372036854775807, 4, 4)", f"({'9' * 30},)", f"({'9' * 5000},)", "(-1, 2, 2)", "(" * 500):
        head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        with zipfile.ZipFile("a.npz", "w") as archive:
            archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"abc")
        with pytest.raises(DataError, match="not a NumPy archive") as caught:
            read(Npz(train=["a.npz"]))
        assert len(str(caught.value)) < 400
    np.savez("a.npz", images=np.array([{}], dtype=object), labels=np.array([1]))
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):  # no pickle is executed
        read(Npz(train=["a.npz"]))
