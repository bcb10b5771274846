"""The image task: metrics, class weights, mixed labels, sizes, distillation, resume, predictions and bad input."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import regard
from regard.data.columns import IGNORED, Batch
from regard.errors import DataError, SettingsError
from regard.models.settings import Vision
from regard.tasks.augmentation import Augmentation, augment
from regard.tasks.image import Image, ImageTask, fitted, to_input
from regard.tasks.run import evaluate_run

CLASSES = tuple("abcdefg")
SMALL: dict[str, Any] = {"width": 16, "depth": 2, "attention.heads": 2, "norm_place": "pre", "patch": 4, "channels": 1}


def made(image: tuple[int, int] = (8, 12), **settings: Any) -> tuple[ImageTask, Any]:
    model = Vision().changed({**SMALL, "image": image, "dropout": 0.0, **settings.pop("model", {})})
    task = ImageTask(Image(**settings), model, labels={"label": CLASSES})
    task.model = task.fit()
    torch.manual_seed(0)
    return task, regard.build(task.model)


def batch(count: int = 40, size: tuple[int, int] = (8, 12)) -> Batch:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 7, count))
    labels[0], labels[1] = IGNORED, 7  # padding, and a class that the training data lacks
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 1, *size), dtype=np.uint8))
    return Batch(values={"pixels": pixels, "label": labels})


def metrics(task: ImageTask, loss: Any) -> dict[str, float]:
    return task.metrics(float(loss.total), float(loss.weight), {name: float(each) for name, each in loss.sums.items()})


def test_top_five_and_calibration() -> None:
    for mirror in (False, True):
        task, model = made(mirror=mirror)
        given = batch()
        with torch.no_grad():
            found = metrics(task, task.loss(model.eval(), given))
            x = given.values["pixels"].float() / 127.5 - 1
            logits = model.heads["label"](model(x)).double()
            logits = (logits + model.heads["label"](model(x.flip(-1)))) / 2 if mirror else logits
        shares, labels = logits.softmax(-1).numpy()[1:], given.values["label"].numpy()[1:]
        right = shares.argmax(1) == labels
        best = np.argsort(-shares, 1)[:, :5]
        assert found["accuracy"] == pytest.approx(right.mean())
        assert found["top5"] == pytest.approx((best == labels[:, None]).any(1).mean())
        error, confidence = 0.0, shares.max(1)
        for low in range(15):
            chosen = (confidence > low / 15) & (confidence <= (low + 1) / 15)
            if chosen.any():
                error += chosen.mean() * abs(right[chosen].mean() - confidence[chosen].mean())
        assert found["calibration"] == pytest.approx(error, abs=1e-6)


def test_the_loss_of_mixed_images_and_class_weights() -> None:
    task, model = made(smoothing=0.1, augment=Augmentation(mixup=0.5))
    task.weights = [1.0, 2.0, 3.0, 1.0, 1.0, 0.5, 1.0]  # a cached property
    given = batch()
    given.values["label"][1] = 3
    torch.manual_seed(4)
    loss = task.loss(model.train(), given)
    torch.manual_seed(4)
    drawn = augment(given.values["pixels"], given.values["label"], task.settings.augment, (8, 12))
    assert drawn.others is not None
    assert drawn.shares is not None
    logits = model.heads["label"](model(drawn.images / 127.5 - 1))
    total = torch.zeros(())
    for labels, shares in ((drawn.labels, drawn.shares), (drawn.others, 1 - drawn.shares)):
        rows = labels != IGNORED
        weights = torch.tensor(task.weights)[labels[rows]] * shares[rows]
        each = functional.cross_entropy(logits[rows], labels[rows], reduction="none", label_smoothing=0.1)
        total = total + (weights * each).sum()
    torch.testing.assert_close(loss.total, total)


def test_normalization_by_channel() -> None:
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = regard.build(Vision().changed({"width": 8, "depth": 1, "attention.heads": 2, "patch": 4, "image": (4, 4)}))
    torch.testing.assert_close(to_input(images, model), images / 127.5 - 1)
    model.settings = model.settings.changed({"mean": mean, "deviation": deviation})
    wanted = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None]
    torch.testing.assert_close(to_input(images, model), wanted)
    with pytest.raises(SettingsError, match="mean has 2 numbers, expected 1, or 3"):
        Vision().changed({"mean": (0.5, 0.5)})


def test_distillation() -> None:
    """Soft and hard losses in float64 by hand; the second layer of a distilled head learns from the teacher."""
    for form in ("soft", "hard"):
        for distilled in (False, True):
            head = {"heads.label": {"kind": "classification", "classes": 7, "distilled": distilled}, "registers": 1}
            task, model = made(teacher={"model": "none", "loss": form, "weight": 0.3}, model=head)
            _, task.teacher = made(image=(16, 12))
            task.order = [6, 5, 4, 3, 2, 1, 0]
            given = batch()
            given.values["label"][1] = 3
            model, task.teacher = model.double().train(), task.teacher.double().eval()
            loss = task.loss(model, given)
            x = given.values["pixels"].double()
            with torch.no_grad():
                bigger = functional.interpolate(x.float(), (16, 12), mode="bilinear", antialias=True).double()
                taught = task.teacher.heads["label"](task.teacher(bigger / 127.5 - 1)).flip(-1)[1:]
            hidden = model(x / 127.5 - 1)
            own = model.heads["label"].output(hidden[:, 0])[1:]
            learner = model.heads["label"].distilled(hidden[:, 1])[1:] if distilled else own
            plain = functional.cross_entropy(own, given.values["label"][1:], reduction="sum")
            if form == "hard":
                other = functional.cross_entropy(learner, taught.argmax(-1), reduction="sum")
            else:
                shares = [functional.log_softmax(each / 3, -1) for each in (learner, taught)]
                other = 9 * functional.kl_div(*shares, reduction="sum", log_target=True)
            torch.testing.assert_close(loss.total, 0.7 * plain + 0.3 * other, rtol=1e-5, atol=1e-5)
            if distilled:  # in use, the logits are the mean
                torch.testing.assert_close(model.heads["label"](hidden)[1:], (own + learner) / 2)


def test_mean_pooling_reads_the_patches_only() -> None:
    task, model = made(model={"registers": 2, "heads.label": {"kind": "classification", "pooling": "mean"}})
    hidden = torch.randn(3, 9, 16)  # class token, 2 registers, 6 patches
    wanted = model.heads["label"].output(hidden[:, 3:].mean(1))
    torch.testing.assert_close(model.heads["label"](hidden), wanted)
    assert task.model.tokens == 9
    assert model(torch.zeros(1, 1, 8, 12)).shape == (1, 9, 16)


def test_fitted_images() -> None:
    pytest.importorskip("PIL")
    wide = np.zeros((4, 12, 1), np.uint8)
    wide[:, 4:8] = 200
    assert fitted(wide, (4, 4), 1, "crop")[0].tolist() == [[200] * 4] * 4
    stretched = fitted(wide, (4, 4), 1, "stretch")[0, 0].tolist()
    assert stretched[0] < 20
    assert max(stretched) < 200


def pictures(folder: Path, size: tuple[int, int] = (12, 8)) -> None:
    """Two classes: light above, or light on the left."""
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(48):
        name = ("above", "left")[number % 2]
        pixels = rng.integers(0, 60, size[::-1], dtype=np.uint8)
        half = pixels[: size[1] // 2] if name == "above" else pixels[:, : size[0] // 2]
        half += 150
        (folder / name).mkdir(parents=True, exist_ok=True)
        pillow.fromarray(pixels).save(folder / name / f"{number}.png")


def recipe(folder: Path) -> dict[str, Any]:
    return {
        "task": {"kind": "image", "augment": {"padding": 1, "operations": 1, "mixup": 0.2}},
        "data": {"kind": "image-folder", "train": [str(folder)], "valid": [str(folder)], "colours": "grey"},
        "model": {"kind": "vision", **regard.settings.nested(SMALL), "image": [8, 12]},
        "train": {"examples": 16, "steps": 24, "evaluate_every": 12, "log_every": 4, "optimizer": {"rate": 3e-3}},
    }


@pytest.mark.slow
def test_images_that_are_not_square_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, stop and resume to the same weights, evaluate, continue at another size, predict from every form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    pictures(tmp_path / "images")
    given = recipe(tmp_path / "images")
    whole = regard.train(given, {"train.directory": "whole"}, device="cpu")
    stopped = {"train.directory": "parts"}
    regard.train(given, stopped, device="cpu", on_step=lambda now: now["step"] < 10)
    regard.resume("parts", device="cpu")
    for one, other in zip(*(regard.load(name, "cpu").network.parameters() for name in ("whole", "parts")), strict=True):
        assert torch.equal(one, other)
    assert whole.scores["accuracy"] > 0.9
    _, found, details = evaluate_run(Path("whole"), "valid", device="cpu")
    counts = np.array(details["confusion"]["counts"])
    assert details["confusion"]["classes"] == ["above", "left"]
    assert counts.sum() == 48
    assert counts.trace() / 48 == pytest.approx(found["accuracy"])
    later = {"train.directory": "larger", "train.start": "whole", "model.image": [16, 12], "train.steps": 2}
    regard.train(given, {**later, "task.teacher": {"model": "whole"}}, device="cpu")
    model = regard.load("whole", "cpu")
    file = tmp_path / "images" / "left" / "1.png"
    pillow = pytest.importorskip("PIL.Image")
    forms = [str(file), file, file.read_bytes(), pillow.open(file), np.asarray(pillow.open(file))]
    answers = model.predict(forms)
    assert answers[0]["file"] == str(file)
    assert {each["label"] for each in answers} == {"left"}
    assert all(each["probabilities"] == answers[0]["probabilities"] for each in answers)
    assert regard.load("larger", "cpu").predict(forms[:1])[0]["label"] == "left"
    buffer = io.BytesIO()
    pillow.open(file).convert("CMYK").save(buffer, "JPEG")
    assert model.predict([buffer.getvalue()])[0]["label"] == "left"
    for wrong, message in ((b"no image", "an image does not decode"), (3, "type int"), (np.zeros((2, 2)), "uint8")):
        with pytest.raises(DataError, match=message):
            model.predict([wrong])


def test_settings_that_do_not_fit() -> None:
    for changes, message in (
        ({"stored": (4, 4)}, r"task\.stored \(\[4, 4\]\) is smaller than model\.image \(\[8, 12\]\)"),
        ({"weights": {"A": 2.0}}, "unknown class A.*did you mean a"),
    ):
        with pytest.raises(SettingsError, match=message):
            made(**changes)[0].columns()
    with pytest.raises(DataError, match='every training example has the label "x"'):
        ImageTask(Image(), Vision(), labels={"label": ("x",)}).fit()
    with pytest.raises(SettingsError, match="distilled needs"):
        Vision().changed({"heads.label": {"kind": "classification", "distilled": True}})
