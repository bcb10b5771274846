"""Architecture view: parts, parameters and FLOPs are those that `regard.count` counts in another way."""

from __future__ import annotations

from typing import Any

from family_cases import decoder, encoder, encoder_decoder
from study_cases import run_of, token_run

import regard
from regard.blocks import settings as blocks
from regard.look.study import Study
from regard.look.views.architecture import architecture

IDS = [3, 1, 4, 1, 5, 9, 2]


def parts_of(found: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Every part, with how often it occurs."""
    parts = []
    for stack in found["stacks"]:
        parts += [(1, part) for part in (*stack["before"], *stack["after"])]
        parts += [(group["count"], part) for group in stack["groups"] for part in group["parts"]]
    return parts


def test_parameters_and_flops_are_those_of_count() -> None:
    heads: dict[str, Any] = {"heads": {}}
    for model in (
        decoder(),
        decoder(position=blocks.Rotary(), attention=blocks.Attention(heads=4, kv_heads=2, window=3), norm_place="pre"),
        decoder(position=blocks.TransformerXL(), ffn=blocks.Gated(hidden=24)),
        decoder(norm_place="sandwich", tied=False, output_bias=True),
        encoder(position=blocks.Learned(length=16)).model_copy(update=heads),
        encoder_decoder(),
        encoder_decoder(position=blocks.Relative(), norm_place="pre").model_copy(update={"tied": ()}),
    ):
        sides = [IDS, IDS] if model.kind == "encoder-decoder" else [IDS]
        study, run = token_run(regard.build(model), *sides)
        parts = parts_of(architecture(study, run))
        counted = regard.count(model, length=len(IDS))
        assert sum(times * part["flops"] for times, part in parts) == counted.flops.sequence, model
        assert sum(times * part["parameters"] for times, part in parts) == counted.parameters, model


def test_layers_that_differ_are_apart_and_steps_are_in_the_walk(studies: dict[str, Study]) -> None:
    from regard.look.views.walk import walk

    mixed = decoder(ffn=blocks.Experts(experts=4, active=2, hidden=8, first_dense=1)).changed({"depth": 3})
    study, run = token_run(regard.build(mixed), IDS)
    (stack,) = architecture(study, run)["stacks"]
    assert [(group["first"], group["count"]) for group in stack["groups"]] == [(0, 1), (1, 2)]
    for family in studies:
        study, run = run_of(studies, family)
        for stack in architecture(study, run)["stacks"]:
            names = {step.name for step in walk(study, run, f"{stack['name']}.0", 0)}
            layer = [part for group in stack["groups"][:1] for part in group["parts"]]
            for part in (*stack["before"], *layer, *stack["after"]):
                assert part["step"].format(0) in names, (family, part["label"])


def test_images(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "vision")
    (stack,) = architecture(study, run)["stacks"]
    assert stack["before"][0]["label"] == "Patches"
    assert stack["after"][-1]["label"] == "Head label"
