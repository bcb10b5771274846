"""Image folders, idx files and NumPy archives: valid and invalid files."""

from __future__ import annotations

import gzip
import struct
import sys
import zipfile
import zlib
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


def test_many_images_are_decoded_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order and with the same problems as in this process."""
    for number in range(40):
        paint(f"a/{'even' if number % 2 == 0 else 'odd'}/{number:02}.png", (number, 0, 0), size=(2, 2))
    Path("a/even/08.png").write_bytes(b"damaged")
    monkeypatch.setattr("regard.data.images.FEW", 5)
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        source = Source(ImageFolder(train=["a"]), "train")
        found[cores] = [(int(each.pixels[0, 0, 0]), each.label) for each in source]
        assert sum(tally["count"] for tally in source.problems.values()) == 1
    assert found[1] == found[2]
    assert [value for value, _ in found[2]] == [*range(0, 8, 2), *range(10, 40, 2), *range(1, 40, 2)]


def test_unusual_images() -> None:
    """CMYK, palettes, opacity, 16 bits, floats, animations, photos on their side, misnamed and giant files."""
    image = pytest.importorskip("PIL.Image")
    Path("a").mkdir()
    image.new("CMYK", (2, 2), (0, 255, 255, 0)).save("a/cmyk.jpg")
    image.new("RGB", (2, 2), (250, 0, 0)).quantize(4).save("a/palette.gif")
    image.new("RGBA", (2, 2), (250, 0, 0, 99)).save("a/opacity.png")
    frames = [image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    frames[0].save("a/animated.gif", save_all=True, append_images=frames[1:])
    image.new("RGB", (2, 2), (250, 0, 0)).save("a/really.bmp", "PNG")
    for file in sorted(Path("a").iterdir()):
        red, green, blue = read_image(file, "rgb")[0, 0].tolist()
        assert (red > 240, green < 15, blue < 15) == (True, True, True), file
    side = image.new("L", (3, 2))
    exif = side.getexif()
    exif[0x0112] = 6  # turned by a quarter
    side.save("a/side.jpg", exif=exif)
    assert read_image(Path("a/side.jpg"), "grey").shape == (3, 2, 1)
    image.fromarray(np.full((2, 2), 40_000, np.int32)).save("a/deep.tif")
    assert read_image(Path("a/deep.tif"), "grey").max() == 40_000 >> 8
    image.fromarray(np.full((2, 2), 0.5, np.float32)).save("a/floats.tif")
    Path("a/empty.png").write_bytes(b"")
    for name, message in (("floats.tif", "floating-point"), ("empty.png", "not one of PNG")):
        with pytest.raises(DataError, match=message):
            read_image(Path("a") / name, "rgb")
    giant = bytearray(Path("a/really.bmp").read_bytes())  # its header says 60,000 × 60,000 pixels
    giant[16:24] = struct.pack(">II", 60_000, 60_000)
    giant[29:33] = struct.pack(">I", zlib.crc32(bytes(giant[12:29])))
    Path("a/giant.png").write_bytes(bytes(giant))
    with pytest.raises(DataError, match="exceeds limit"):
        read_image(Path("a/giant.png"), "rgb")


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
    with pytest.raises(DataError, match=r"not a NumPy archive.*not a zip file; write it with np\.savez"):
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
