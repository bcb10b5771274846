"""A file of an image as a model reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.images import pillow_images
from regard.errors import InputError
from regard.models.settings import Vision


def read_image(path: Path, settings: Vision) -> NDArray[np.uint8]:
    """`[C, height, width]` in bytes, resized to what the model takes."""
    if settings.channels not in (1, 3):
        raise InputError(
            f"channels ({settings.channels}) is neither 1 nor 3, and image files have these; give an array"
        )
    pillow, mode = pillow_images(), "L" if settings.channels == 1 else "RGB"
    try:
        with pillow.open(path) as image:
            resized = image.convert(mode).resize(settings.image[::-1])
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image ({error}); name another file") from None
    pixels = np.asarray(resized, dtype=np.uint8).reshape(*settings.image, settings.channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
