"""From the settings of a model to the plans of its stacks."""

from __future__ import annotations

from regard.blocks.settings import NoPosition, TextPosition, TransformerXL
from regard.blocks.stack import LayerPlan, StackPlan
from regard.models.settings import Body


def stack_plan(
    body: Body,
    position: TextPosition | None = None,
    causal: bool = False,
    cross: bool = False,
    depth: int | None = None,
) -> StackPlan:
    position = NoPosition() if position is None else position
    layer = LayerPlan(
        width=body.width,
        attention=body.attention,
        ffn=body.ffn,
        norm=body.norm,
        norm_place=body.norm_place,
        dropout=body.dropout,
        layer_scale=body.layer_scale,
        cross=cross,
        relative=isinstance(position, TransformerXL),
    )
    return StackPlan(layer, depth or body.depth, position, causal, body.has_final_norm, body.stochastic_depth)
