"""Readers of images: a folder for each class, MNIST's idx files, NumPy archives."""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal

import numpy as np

from regard.data.examples import Located, Picture, Pixels, Problem
from regard.data.readers import open_bytes
from regard.data.settings import Idx, ImageFolder, Npz
from regard.errors import DataError, extra_module

IDX_BYTES = 0x08
"""The type code of unsigned bytes in the header of an idx file."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Formats that are read, whatever the name of a file: others may start programs (EPS starts Ghostscript)."""
SHOWN = 200
"""Most characters of a library's message that an error repeats."""
LARGEST_UPLOAD = 2**25
"""Most pixels of an image that was sent over a network; a small file can have very many."""
FEW = 64
"""Images that are decoded at a time."""
LARGEST = 2**28
"""Most bytes of an image in an idx file."""


def read_image_folder(settings: ImageFolder, folder: str) -> Iterator[Located[Picture | Problem]]:
    """Yields the images of each class's folder; classes and files are sorted by name."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{folder} is not a folder; give one with a subfolder of images for each class")
    classes = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no subfolders; an image folder needs one for each class, with its name")
    files = [
        (file, of_class.name)
        for of_class in classes
        for file in sorted(path for path in of_class.rglob("*") if path.is_file() and not path.name.startswith("."))
    ]
    with closing(_decoded([file for file, _ in files], settings.colours)) as decoded:
        for number, ((file, name), pixels) in enumerate(zip(files, decoded, strict=True), 1):
            example = pixels if isinstance(pixels, Problem) else Picture(pixels, name)
            yield Located(example, str(file), number, unit="")


def _decoded(files: list[Path], colours: Literal["rgb", "grey"]) -> Generator[Pixels | Problem, None, None]:
    """The images in order. After the first ones, other processes decode them, one for each core."""
    decode = partial(_decode, colours=colours)
    yield from map(decode, files[:FEW])
    chunks = [(files[start : start + FEW],) for start in range(FEW, len(files), FEW)]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if len(chunks) < 2 or cores < 2:
        yield from map(decode, files[FEW:])
        return
    from regard.data.loader import in_workers  # imports torch

    with in_workers(partial(_decode_all, colours=colours), chunks, cores) as decoded:
        yield from chain.from_iterable(decoded)


def _decode_all(files: list[Path], colours: Literal["rgb", "grey"]) -> list[Pixels | Problem]:
    return [_decode(file, colours) for file in files]


def read_image(image: Any, colours: Literal["rgb", "grey"], name: str = "") -> Pixels:
    """Reads an image (a file, its bytes, or a Pillow image) as `[height, width, channels]`. `name` is for errors."""
    if isinstance(image, Path) and not image.is_file():
        raise DataError(f"{image} {'is a folder' if image.is_dir() else 'does not exist'}; give an image file")
    if not isinstance(image, Path | bytes | pillow_images().Image):
        raise DataError(f"an image is of type {type(image).__name__}, expected a file, bytes, a Pillow image or array")
    pixels = _decode(image, colours)
    if isinstance(pixels, Problem):
        given = image if isinstance(image, Path) else "an image"
        raise DataError(f"{name or given} {pixels.reason} ({pixels.detail}); give a PNG or JPEG file")
    return pixels


def pillow_images() -> ModuleType:
    return extra_module("PIL.Image", "Pillow", "vision", "reading image files", DataError)


def _decode(given: Any, colours: Literal["rgb", "grey"]) -> Pixels | Problem:
    """The first frame of an image in 8 bits, upright as its EXIF data says."""
    pillow: Any = pillow_images()
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            # A damaged image may warn before it fails, and a huge one is the user's own.
            warnings.simplefilter("ignore")
            file = io.BytesIO(given) if isinstance(given, bytes) else given
            with nullcontext(given) if isinstance(given, pillow.Image) else pillow.open(file, formats=FORMATS) as image:
                if isinstance(given, bytes) and math.prod(image.size) > LARGEST_UPLOAD:
                    return Problem("is too large", f"more than {LARGEST_UPLOAD:,} pixels")
                image = ImageOps.exif_transpose(image)
                if image.mode == "F":
                    return Problem("does not decode as an image", "pixels are floating-point numbers, not 8 or 16 bits")
                if image.mode.startswith("I"):  # Pillow would clip 16 bits at 255
                    values = np.asarray(image)
                    values = values >> (8 if image.mode != "I" or values.max() > 255 else 0)
                    image = pillow.fromarray(values.clip(0, 255).astype(np.uint8))
                pixels = np.asarray(image.convert("RGB" if colours == "rgb" else "L"), dtype=np.uint8)
    except Exception as error:  # Pillow reports damage with errors of many types
        unknown = isinstance(error, pillow.UnidentifiedImageError)
        detail = f"not one of {', '.join(FORMATS)}" if unknown else str(error)[:SHOWN] or type(error).__name__
        return Problem("does not decode as an image", detail)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def read_idx(_: Idx, images: str, labels: str) -> Iterator[Located[Picture]]:
    with open_bytes(images) as pictures, open_bytes(labels) as classes:
        count, *size = _idx_shape(pictures, images, dimensions=(3, 4))
        (labelled,) = _idx_shape(classes, labels, dimensions=(1,))
        if count != labelled:
            raise DataError(
                f"{images} has {count:,} images, but {labels} has {labelled:,} labels; each image needs one label"
            )
        shape = (*size, 1) if len(size) == 2 else tuple(size)
        if not 0 < math.prod(shape) <= LARGEST:
            raise DataError(
                f"{images}: its header says images of {' × '.join(map(str, size))} bytes; download it again"
            )
        for number in range(1, count + 1):
            pixels = np.frombuffer(_exactly(pictures, math.prod(shape), images), dtype=np.uint8).reshape(shape)
            yield Located(Picture(pixels, str(_exactly(classes, 1, labels)[0])), images, number, "image")


def _idx_shape(stream: BinaryIO, file: str, dimensions: tuple[int, ...]) -> list[int]:
    """Reads the header of an idx file: two zero bytes, the type, the number of dimensions, the sizes."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != IDX_BYTES or magic[3] not in dimensions:
        wanted = "images" if 3 in dimensions else "labels"
        raise DataError(
            f"{file} is not an idx file of {wanted}: it begins with {magic.hex(' ') or 'nothing'}, "
            f"expected 00 00 08 {dimensions[0]:02x}; data.train, valid and test need images first, then labels"
        )
    return list(struct.unpack(f">{magic[3]}I", _exactly(stream, 4 * magic[3], file)))


def _exactly(stream: BinaryIO, size: int, file: str) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise DataError(f"{file} is shorter than its header says; download it again")
    return found


def read_npz(settings: Npz, file: str) -> Iterator[Located[Picture]]:
    with open_bytes(file) as stream:
        try:
            # It never unpickles by default, so it runs no code from the file; np.load would suggest to allow it.
            with np.lib.npyio.NpzFile(io.BytesIO(stream.read())) as archive:
                arrays = {key: archive[key] for key in (settings.pixels, settings.label) if key in archive}
                names = ", ".join(archive)
        except Exception as error:  # NumPy reports damage with errors of many types
            detail = str(error)[:SHOWN] or type(error).__name__
            raise DataError(f"{file} is not a NumPy archive (.npz): {detail}; write it with np.savez") from None
    for setting, key in (("pixels", settings.pixels), ("label", settings.label)):
        if key not in arrays:
            raise DataError(f"{file} has no array {key}, only {names}; set data.{setting}")
    pixels, labels = arrays[settings.pixels], arrays[settings.label]
    if pixels.ndim not in (3, 4) or pixels.dtype != np.uint8:
        raise DataError(
            f"{file}: {settings.pixels} is {pixels.dtype} of shape {list(pixels.shape)}, expected uint8 of "
            "shape [n, height, width] or [n, height, width, channels]"
        )
    if labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{file}: {settings.label} has shape {list(labels.shape)}, expected [{len(pixels)}], one label "
            "for each image"
        )
    images = pixels[..., None] if pixels.ndim == 3 else pixels
    for number, (picture, label) in enumerate(zip(images, labels, strict=True), 1):
        yield Located(Picture(picture, str(label)), file, number, "image")
