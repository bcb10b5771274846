"""From the settings of a text position to its module."""

from __future__ import annotations

from regard.blocks import settings
from regard.blocks.positions.learned import LearnedPosition
from regard.blocks.positions.position import Position
from regard.blocks.positions.relative import AlibiPosition, RelativePosition, TransformerXLPosition
from regard.blocks.positions.rotary import RotaryPosition
from regard.blocks.positions.sinusoidal import SinusoidalPosition


def build_embedded(position: settings.TextPosition, width: int) -> Position:
    """The module that adds to the embeddings; one that does nothing, where the kind works inside attention."""
    if isinstance(position, settings.Sinusoidal):
        return SinusoidalPosition(position, width)
    if isinstance(position, settings.Learned):
        return LearnedPosition(position, width)
    return Position()


def build_attended(position: settings.TextPosition, width: int, heads: int, head_size: int, causal: bool) -> Position:
    """The module that informs attention; one that does nothing, where the kind adds to the embeddings."""
    if isinstance(position, settings.Rotary):
        return RotaryPosition(position, position.channels(head_size))
    if isinstance(position, settings.Relative):
        return RelativePosition(position, heads, causal)
    if isinstance(position, settings.Alibi):
        return AlibiPosition(heads)
    if isinstance(position, settings.TransformerXL):
        return TransformerXLPosition(position, width)
    return Position()
