"""Images: a folder for each class, MNIST's idx files, NumPy archives."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.base_settings import STANDARD_INPUT
from regard.data.examples import Picture, Pixels, Placed
from regard.data.files import open_bytes, shown_name
from regard.data.problems import Problems
from regard.data.settings import ImageFolder, Npz
from regard.errors import DataError

if TYPE_CHECKING:
    from types import ModuleType

IDX_BYTES = 0x08
"""The type code of unsigned bytes in an idx file's magic number."""
_MODES = {"rgb": "RGB", "grey": "L"}
"""What Pillow calls them."""

# ------------------------------------------------------------------------------------------------------------- folders


def read_image_folder(folder: str, settings: ImageFolder, problems: Problems) -> Iterator[Placed[Picture]]:
    """The images in each class's folder, classes and files in the order of their names."""
    pillow = pillow_images()
    root = Path(folder)
    if folder == STANDARD_INPUT:
        raise DataError("an image folder cannot come from standard input; name the folder")
    if not root.is_dir():
        raise DataError(f"{folder} is not a folder; give one that has a folder of images for each class")
    classes = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no folder inside; an image folder needs one for each class, named by it")
    number = 0
    for of_class in classes:
        for file in sorted(path for path in of_class.rglob("*") if path.is_file() and not path.name.startswith(".")):
            number += 1
            pixels = _decode(pillow, file, _MODES[settings.colours], problems)
            if pixels is not None:
                yield Placed(Picture(pixels, of_class.name), str(file), number)


def pillow_images() -> ModuleType:
    try:
        import PIL.Image
    except ImportError:
        raise DataError("reading image files needs Pillow; install it: pip install 'regard[vision]'") from None
    return PIL.Image


def read_image(file: Path, colours: Literal["rgb", "grey"]) -> Pixels:
    """One image file, `[height, width, channels]`."""
    problems = Problems("skip")
    if not file.is_file():
        raise DataError(f"{file} {'is a folder' if file.is_dir() else 'does not exist'}; name a file with an image")
    pixels = _decode(pillow_images(), file, _MODES[colours], problems)
    if pixels is None:
        raise DataError(f"{file} does not decode as an image; give one that Pillow reads, such as PNG or JPEG")
    return pixels


def _decode(pillow: Any, file: Path, mode: str, problems: Problems) -> Pixels | None:
    try:
        with warnings.catch_warnings():
            # A damaged image may warn before it fails, and a huge one is the user's own.
            warnings.simplefilter("ignore")
            with pillow.open(file) as image:
                if image.mode.startswith("I;16"):  # Pillow would cut 16 bits off at 255, so that all is white
                    image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
                pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, struct.error, EOFError, pillow.DecompressionBombError) as error:
        # Pillow tells of damage with any of these.
        told = "it is no image" if isinstance(error, pillow.UnidentifiedImageError) else str(error)
        problems.add(str(file), "", "does not decode as an image", told)
        return None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


# ----------------------------------------------------------------------------------------------------------- idx files


def read_idx(images: str, labels: str) -> Iterator[Placed[Picture]]:
    """Images and labels of two idx files, one image at a time."""
    with open_bytes(images) as pictures, open_bytes(labels) as classes:
        count, *size = _idx_shape(pictures, images, dimensions=(3, 4))
        (labelled,) = _idx_shape(classes, labels, dimensions=(1,))
        if count != labelled:
            raise DataError(
                f"{shown_name(images)} has {count:,} images, but {shown_name(labels)} has {labelled:,} labels; "
                "they must be as many"
            )
        shape = (*size, 1) if len(size) == 2 else tuple(size)
        for number in range(1, count + 1):
            pixels = np.frombuffer(_exactly(pictures, int(np.prod(shape)), images), dtype=np.uint8).reshape(shape)
            yield Placed(Picture(pixels, str(_exactly(classes, 1, labels)[0])), images, number)


def _idx_shape(stream: BinaryIO, file: str, dimensions: tuple[int, ...]) -> list[int]:
    """The sizes that the head of an idx file gives (two zero bytes, the type, how many sizes, the sizes)."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != IDX_BYTES or magic[3] not in dimensions:
        wanted = "images" if 3 in dimensions else "labels"
        raise DataError(
            f"{shown_name(file)} is no idx file of {wanted}: it begins with {magic.hex(' ') or 'nothing'}, not with "
            f"00 00 08 {dimensions[0]:02x}; data.train, valid and test name images first, then labels"
        )
    return list(struct.unpack(f">{magic[3]}I", _exactly(stream, 4 * magic[3], file)))


def _exactly(stream: BinaryIO, size: int, file: str) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise DataError(f"{shown_name(file)} ends before the number of images that its head gives; fetch it again")
    return found


# ------------------------------------------------------------------------------------------------------ NumPy archives


def read_npz(file: str, settings: Npz) -> Iterator[Placed[Picture]]:
    pixels, labels = _npz_arrays(file, settings)
    if pixels.ndim not in (3, 4) or pixels.dtype != np.uint8:
        raise DataError(
            f"{shown_name(file)}: {settings.pixels} is {pixels.dtype} of shape {list(pixels.shape)}; it must be uint8 "
            "of shape [n, height, width] or [n, height, width, channels]"
        )
    if labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{shown_name(file)} has {len(pixels):,} images, but {settings.label} has the shape {list(labels.shape)}; "
            "it must have one label for each image"
        )
    shown = pixels[..., None] if pixels.ndim == 3 else pixels
    for number, (picture, label) in enumerate(zip(shown, labels, strict=True), 1):
        yield Placed(Picture(picture, str(label)), file, number)


def _npz_arrays(file: str, settings: Npz) -> tuple[NDArray[Any], NDArray[Any]]:
    with open_bytes(file) as stream:
        try:
            # allow_pickle is False by default: no code of a file is ever run.
            with np.load(io.BytesIO(stream.read())) as archive:
                missing = [key for key in (settings.pixels, settings.label) if key not in archive]
                if missing:
                    raise DataError(
                        f"{shown_name(file)} has no array {missing[0]}; it has {', '.join(archive)}: choose with "
                        "data.pixels and data.label"
                    )
                return archive[settings.pixels], archive[settings.label]
        except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{shown_name(file)} is no NumPy archive (.npz): {error}; write it with np.savez") from None
