"""Images of one size: held against Pillow and NumPy; labels learnt, known and strange."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data import make as making
from regard.data.forms import Limit
from regard.data.image_form import ImageForm
from regard.data.labels import Labels
from regard.data.prepare import Preparation, prepare
from regard.data.settings import DataSettings, ImageFolder, Npz, RawText, Split
from regard.data.source import Source
from regard.errors import DataError, SettingsError

CHANCE = np.random.default_rng(0)
GREY = CHANCE.integers(0, 256, (5, 6, 4), np.uint8)
COLOURS = CHANCE.integers(0, 256, (3, 6, 4, 3), np.uint8)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    np.savez("train.npz", images=GREY, labels=np.array([10, 2, 10, 1, 2]))
    np.savez("valid.npz", images=GREY[:3], labels=np.array([2, 7, 1]))
    np.savez("colours.npz", images=COLOURS, labels=np.array(["b", "a", "b"]))


def settings(unseen: str = "stop") -> Npz:
    return Npz(train=("train.npz",), valid=("valid.npz",)).changed({"unseen": unseen})


def stored(found: Preparation, side: str) -> list[list[int]]:
    (only,) = found.variants
    flat, lengths = only.gather(side, np.arange(len(only)))
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


def made(data: DataSettings, form: ImageForm, split: Split = "train") -> Preparation:
    return prepare(Source(data, split), form)


def test_what_fits_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without Pillow; labels are numbered by their order, however late they come."""
    monkeypatch.setattr(making, "CHUNK", 2)
    monkeypatch.setattr("regard.data.image_form.pillow_images", None)
    found = made(settings(), ImageForm((6, 4), 1))
    assert stored(found, "pixels") == GREY.reshape(5, -1).tolist()
    assert found.labels == Labels(("1", "2", "10"))
    assert stored(found, "label") == [[2], [1], [2], [0], [1]]
    assert (found.variants[0].directory / "pixels.tokens").stat().st_size == GREY.size
    assert made(settings(), ImageForm((6, 4), 1)).labels == found.labels


def test_channels_come_first() -> None:
    found = made(Npz(train=("colours.npz",)), ImageForm((6, 4), 3))
    assert stored(found, "pixels") == COLOURS.transpose(0, 3, 1, 2).reshape(3, -1).tolist()
    assert stored(found, "label") == [[1], [0], [1]]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
@pytest.mark.parametrize("size", [(6, 4), (3, 9)])
def test_size_and_colours_are_changed_as_pillow_does(channels: int, mode: str, size: tuple[int, int]) -> None:
    for file, images in (("train.npz", GREY), ("colours.npz", COLOURS)):
        found = made(Npz(train=(file,)), ImageForm(size, channels))  # type: ignore[arg-type]
        expected = []
        for pixels in images:
            image = Image.fromarray(pixels).convert(mode).resize(size[::-1], Image.Resampling.BILINEAR)
            expected.append(np.asarray(image).reshape(*size, channels).transpose(2, 0, 1).reshape(-1).tolist())
        assert stored(found, "pixels") == expected


def test_too_many_channels() -> None:
    np.savez("odd.npz", images=np.zeros((1, 2, 2, 5), np.uint8), labels=np.array([1]))
    with pytest.raises(DataError) as caught:
        made(Npz(train=("odd.npz",)), ImageForm((2, 2), 1))
    assert str(caught.value) == (
        "odd.npz, image 1 has 5 channels; an image has 1 (grey), 3 (colours) or 4 (with opacity)"
    )


def test_a_label_that_training_never_saw() -> None:
    labels = made(settings(), ImageForm((6, 4), 1)).labels
    form = ImageForm((6, 4), 1, labels)
    with pytest.raises(DataError, match=r"valid.npz, image 2 has the label 7"):
        made(settings(), form, "valid")
    for _ in range(2):
        skipped, kept = (made(settings(unseen), form, "valid") for unseen in ("skip", "keep"))
        assert stored(skipped, "label") == [[1], [0]]
        assert stored(kept, "label") == [[1], [3], [0]]
        for found in (skipped, kept):
            assert found.counts.unseen["has a label that does not occur in training"].count == 1
            assert found.labels == labels


def test_all_labels_are_strange() -> None:
    with pytest.raises(DataError, match=r"data.valid has no example left; check its labels:\n3 × has a label that"):
        made(settings("skip"), ImageForm((6, 4), 1, Labels(("cat", "dog"))), "valid")


def test_an_image_that_does_not_decode() -> None:
    for name in ("cat", "dog"):
        Path("images", name).mkdir(parents=True)
        Image.fromarray(COLOURS[0]).save(f"images/{name}/1.png")
    Path("images/cat/2.png").write_bytes(b"no image")
    found = made(ImageFolder(train=("images",)), ImageForm((6, 4), 3))
    assert stored(found, "label") == [[0], [1]]
    assert found.labels == Labels(("cat", "dog"))
    assert found.counts.skipped["does not decode as an image"].count == 1
    with pytest.raises(DataError, match=r"2.png does not decode as an image \(unknown format\)"):
        made(ImageFolder(train=("images",), bad="stop"), ImageForm((6, 4), 3))


def test_a_form_of_other_labels_is_another() -> None:
    one, two = ImageForm((6, 4), 1, Labels(("a", "b"))), ImageForm((6, 4), 1, Labels(("b", "a")))
    assert one.key() != two.key()
    assert not one.dropout
    assert one.shaper(Limit(1), None).too_long.total == 0  # images have no length
    with pytest.raises(SettingsError, match=r"data.kind \(text\)"):
        made(RawText(train=("train.npz",)), one)
