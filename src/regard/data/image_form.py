"""Images of one size as bytes, and the classes of their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from regard.data.examples import Pixels, Tally
from regard.data.forms import Chunk, Drawn, Limit, Shaper, Sides
from regard.data.images import pillow_images
from regard.data.labels import Labels, ordered_labels
from regard.data.prepared import Writer
from regard.data.ragged import Ragged
from regard.data.settings import Data, Images
from regard.errors import DataError
from regard.settings import Table

COLOURS = {1: "L", 3: "RGB", 4: "RGBA"}
"""What Pillow calls images of so many channels."""
MOST_LABELS = 1 << 32


@dataclass(frozen=True)
class ImageForm:
    """Images of one height and width, grey (one channel) or in colours (three), and a class for each."""

    size: tuple[int, int]
    """Height and width."""
    channels: Literal[1, 3]
    labels: Labels | None = None
    """Those of training; none: they are learnt, since this is training. The class of another one is their number."""

    @property
    def vocabularies(self) -> Mapping[str, int]:
        return {"pixels": 256, "label": MOST_LABELS}

    @property
    def dropout(self) -> bool:
        return False

    def key(self) -> Table:
        names = None if self.labels is None else self.labels.names
        return {"form": "images", "size": self.size, "channels": self.channels, "labels": names}

    def fits(self, settings: Data) -> bool:
        return isinstance(settings, Images)

    def shaper(self, limit: Limit, drawn: Drawn | None) -> Shaper:
        return _ImageShaper(self)


class _ImageShaper:
    """Brings images to one size; numbers labels by their place among those of training, or as they come."""

    def __init__(self, form: ImageForm) -> None:
        self.too_long = Tally()
        self.unknown: Counter[str] = Counter()
        self._form = form
        self._learnt: dict[str, int] = {}
        self._indices = None if form.labels is None else form.labels.indices

    def encode(self, chunk: Chunk) -> Sides:
        images = [
            fitted(placed.example.pixels, self._form.size, self._form.channels, placed.where) for placed in chunk.placed
        ]
        flat = np.stack(images).reshape(len(images), -1)
        return {"pixels": Ragged(flat.reshape(-1), np.full(len(images), flat.shape[1], np.int64))}

    def shape(self, chunk: Chunk, sides: Sides) -> Sides:
        classes = np.array([self._number(placed.example.label) for placed in chunk.placed], np.uint32)
        return {**sides, "label": Ragged(classes, np.ones(len(classes), np.int64))}

    def finish(self, writer: Writer) -> Table:
        """Where labels were learnt, each gets its place in their order for the number that it got when it was met."""
        labels = self._form.labels
        if labels is None:
            labels = ordered_labels(self._learnt)
            writer.renumber("label", [labels.indices[name] for name in self._learnt])
        return {"labels": labels.names}

    def _number(self, label: str | None) -> int:
        if self._indices is not None:
            return self._indices.get(label, len(self._indices)) if label is not None else len(self._indices)
        return self._learnt.setdefault(str(label), len(self._learnt))


def fitted(pixels: Pixels, size: tuple[int, int], channels: int, place: str) -> Pixels:
    """`[channels, height, width]` of the size and colours that are wanted; what fits already is left as it is."""
    height, width, found = pixels.shape
    if found not in COLOURS:
        raise DataError(f"{place} has {found} channels; an image has 1 (grey), 3 (colours) or 4 (with opacity)")
    if found != channels or (height, width) != size:
        pillow = pillow_images()
        image = pillow.fromarray(pixels[:, :, 0] if found == 1 else pixels).convert(COLOURS[channels])
        if (height, width) != size:
            image = image.resize(size[::-1], pillow.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8).reshape(*size, channels)
    return pixels.transpose(2, 0, 1)
