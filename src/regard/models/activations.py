"""What a forward pass in training keeps for the backward pass, told from the settings. No torch in here.

An estimate, tensor by tensor, of what PyTorch's autograd saves on a GPU when attention is fused (its scores are
computed again, not kept; Dao et al. 2022) and nothing else is recomputed:

- a sublayer: the input of its norm, the input of its function, one byte a value for the dropout mask;
- attention: queries, keys, values, the joined heads, and one float32 a head and token;
- a feed-forward: what its activation and its last map need;
- an output over the vocabulary: the float32 log-probabilities.

Left out: what depends on no token, what heads keep for one vector a sequence, temporary buffers, what the allocator
wastes. It agrees with the 34 bytes a layer, token and channel of GPT-2's shape in 16 bits that Korthikanti et al. 2022
(section 4.1) find without the scores.
"""

from __future__ import annotations

from regard.blocks.settings import Gated, LayerNorm, Norm
from regard.models.settings import Body, Decoder, Encoder, EncoderDecoder, Masked, ModelSettings, Tagging, Vision

FLOAT32 = 4
MASK = 1
"""Bytes of one value of a dropout mask."""


def activation_bytes(settings: ModelSettings, length: int, element: int) -> int:
    """Bytes that one sequence of this length keeps, for values of `element` bytes.

    An encoder-decoder reads and writes a sequence of this length each.
    """
    match settings:
        case EncoderDecoder():
            source = _text_embedding(settings, element) + _stack(settings, settings.depth, element, cross=False)
            target = _text_embedding(settings, element) + _stack(settings, settings.decoder_layers, element, cross=True)
            return length * (source + target + FLOAT32 * settings.target_size)
        case Decoder():
            stack = _stack(settings, settings.depth, element, cross=False)
            return length * (_text_embedding(settings, element) + stack + FLOAT32 * settings.vocabulary)
        case Encoder():
            stack = _stack(settings, settings.depth, element, cross=False)
            return length * (_text_embedding(settings, element) + stack + _token_heads(settings, element))
        case Vision():
            rows, columns = settings.grid
            pixels = rows * columns * settings.channels * settings.patch**2 * element
            embedding = _mask(settings.dropout, settings.width)
            return pixels + length * (embedding + _stack(settings, settings.depth, element, cross=False))


def _text_embedding(settings: EncoderDecoder | Encoder | Decoder, element: int) -> int:
    norm = _norm(settings.norm, settings.width, element) if settings.embedding_norm else 0
    return norm + _mask(settings.dropout, settings.width)


def _stack(settings: Body, depth: int, element: int, cross: bool) -> int:
    """Bytes a token; the stack's own output is kept too, since what follows multiplies by it."""
    attentions = 2 if cross else 1
    layer = attentions * (_attention(settings, element) + _sublayer(settings, element))
    layer += _feed_forward(settings, element) + _sublayer(settings, element)
    final = _norm(settings.norm, settings.width, element) if settings.has_final_norm else 0
    return depth * layer + final + settings.width * element


def _sublayer(settings: Body, element: int) -> int:
    """The function's input, its norm's input, the dropout mask, and what the rarer variants add."""
    kept = settings.width * element + _norm(settings.norm, settings.width, element)
    kept += _mask(settings.dropout, settings.width)
    if settings.norm_place == "sandwich":
        kept += _norm(settings.norm, settings.width, element)
    if settings.layer_scale is not None:
        kept += settings.width * element
    return kept


def _attention(settings: Body, element: int) -> int:
    heads, groups = settings.attention.heads, settings.kv_heads
    values = (heads + groups) * (settings.head_size + settings.value_size)
    kept = values * element + heads * FLOAT32
    if settings.attention.qk_norm is not None:
        kept += (heads + groups) * _norm(settings.attention.qk_norm, settings.head_size, element)
    return kept


def _feed_forward(settings: Body, element: int) -> int:
    """ReLU needs only its result, which the last map keeps anyway unless dropout stands between them."""
    ffn, hidden = settings.ffn, settings.ffn_hidden
    own_input = ffn.activation != "relu"
    tensors = 3 + own_input if isinstance(ffn, Gated) else 1 + (own_input or ffn.dropout > 0)
    return tensors * hidden * element + _mask(ffn.dropout, hidden)


def _token_heads(settings: Encoder, element: int) -> int:
    """Heads that score every token; a masked one is counted as if every token were masked."""
    kept = 0
    for head in settings.heads.values():
        if isinstance(head, Masked):
            kept += 2 * settings.width * element + _norm(settings.norm, settings.width, element)
            kept += FLOAT32 * settings.vocabulary
        elif isinstance(head, Tagging):
            kept += FLOAT32 * head.classes
    return kept


def _norm(norm: Norm, width: int, element: int) -> int:
    """Its input and the float32 figures that it divided by (and subtracted)."""
    return width * element + FLOAT32 * (2 if isinstance(norm, LayerNorm) else 1)


def _mask(dropout: float, width: int) -> int:
    return MASK * width if dropout > 0 else 0
