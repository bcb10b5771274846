"""Maps of vectors, and positions, as the page reads them: tensors as base64 of little-endian float32."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from regard.look.atlas import Atlas, Chart
from regard.look.nearness import Placed
from regard.look.vectors import Anisotropy


def packed(values: Tensor) -> dict[str, Any]:
    """A tensor as text."""
    raw = values.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes()
    return {"shape": list(values.shape), "data": base64.b64encode(raw).decode()}


def vectors_told(found: Atlas) -> dict[str, Any]:
    """The words of some sentences."""
    number_of = {text: number for number, text in enumerate(found.texts)}
    words = [
        {"text": place.word, "sentence": number_of[place.text], "span": list(place.span), "tokens": list(tokens)}
        for place, tokens in zip(found.vectors.places, found.vectors.tokens, strict=True)
    ]
    return {
        "texts": list(found.texts),
        "words": words,
        "cosines": packed(found.cosines),
        "static": packed(found.static),
        "charts": [_chart(chart) for chart in found.charts],
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "word": chart.word,
        "places": list(chart.places),
        "points": packed(torch.stack([each.points for each in chart.maps])),
        "share": [each.share.tolist() for each in chart.maps],
        "chance": None if chart.chance is None else _chance(chart.chance),
    }


def _chance(chance: Anisotropy) -> dict[str, Any]:
    return {"layers": chance.layers.tolist(), "static": chance.static, "pairs": chance.pairs}


def positions_told(found: Placed) -> dict[str, Any]:
    """The positions of one side of a model."""
    vectors, near, scores = found.encodings, found.nearness, found.scores
    told: dict[str, Any] = {
        "kind": found.kind,
        "part": found.part,
        "parts": list(found.parts),
        "length": found.length,
        "longest": found.longest,
        "base": found.base,
        "deviation": found.deviation,
        "untrained": found.untrained,
        "encodings": None,
        "scores": None,
    }
    if vectors is not None and near is not None:
        told["encodings"] = {
            "matrix": packed(vectors.matrix),
            "angles": None if vectors.angles is None else packed(vectors.angles),
            "cosines": packed(vectors.cosines),
            # Of patches each to each, one kind of number is enough to send.
            "dots": None if vectors.grid is not None else packed(vectors.dots),
            "grid": None if vectors.grid is None else list(vectors.grid),
            "first": vectors.first,
            "order": vectors.order,
            "near": {name: getattr(near, name).tolist() for name in ("mean", "least", "most")} | {"whole": near.whole},
        }
    if scores is not None:
        told["scores"] = {"distances": scores.distances.tolist(), "values": packed(scores.scores)}
    return told
