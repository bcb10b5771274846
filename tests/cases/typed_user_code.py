"""Code as users write it, for `mypy --strict`; it is not run. Lines that end in `# error` are mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import torch

import regard
from regard.blocks.settings import Attention, Rotary
from regard.decoding.settings import TranslateOptions
from regard.models.families import Decoder as DecoderNetwork
from regard.models.settings import Decoder

settings = Decoder(width=64, depth=2, attention=Attention(heads=2), position=Rotary(base=1000.0))
assert_type(settings.width, int)
Decoder(widht=3)  # error
Decoder(width="wide")  # error
settings.width = 3  # error

network = regard.build(settings)
assert_type(network, DecoderNetwork)
assert_type(network(torch.zeros(1, 2, dtype=torch.long)), torch.Tensor)
assert_type(regard.count(regard.preset("gpt2", depth=2)).parameters, int)

model = regard.load("de-en")
assert_type(model, regard.Translator)
assert_type(model.translate("Hallo."), str)
assert_type(model.translate(["Hallo."], beam=2, to="en", must=["hello"]), list[str])
assert_type(model.translate("Hallo.", details=True), regard.Translation)
assert_type(model.translate("Hallo.", nbest=3), list[regard.Translation])
assert_type(model.translate(["Hallo."], nbest=3), list[list[regard.Translation]])
print(model.translate("Hallo.", align=True).alignment.pairs, model.translate(["Hallo."], align=True)[0].alignment)
assert_type(model.predict(["Hallo."]), list[str])
assert_type(model.stream("Hallo."), Iterator[str])
assert_type(model.lines(["Hallo."]), Iterator[str])
assert_type(model.score(["Hallo."], ["Hello."]), list[list[float]])
model.translate("Hallo.", bam=3)  # error
model.translate("Hallo.", beam="x")  # error
model.translate(3)  # error


def choose(path: Path, align: bool) -> str:
    found = regard.load(path)
    assert_type(found, regard.Loaded)
    answer = found.translate("Hallo.", TranslateOptions(beam=1), align=align)
    if isinstance(answer, str):
        return answer
    return answer.text if isinstance(answer, regard.Translation) else answer[0].text


with regard.record(network, "decoder.*.attention.weights") as recording:
    network(torch.zeros(1, 2, dtype=torch.long))
print(recording["decoder.0.attention.weights"].sum())
run = regard.train({"task": "translate"}, {"train.steps": 10}, on_step=lambda record: record["step"] < 5)
assert_type(run.directory, Path)
assert_type(run.scores["loss"], float)
print(regard.Study(model).run(regard.Input("Hallo.")).key, regard.__version__, regard.edits.Ablate([0]))
