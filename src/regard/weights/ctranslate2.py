"""An encoder-decoder as a CTranslate2 directory, which its `Translator` reads (the extra `ctranslate2`).

Their tokens are strings, so the vocabularies of the tokenizers are written too; the end of the source and the start of
the target are added by them. What they cannot express is refused, with the setting's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.positions import sinusoidal
from regard.blocks.settings import Activation, Gated, Learned, LinearScaling, Relative, RmsNorm, Rotary, Sinusoidal
from regard.errors import WeightsError
from regard.models.settings import EncoderDecoder
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.weights.directory import settings_of, uncompiled

Quantization: TypeAlias = Literal["int8", "float16", "bfloat16"]
Tensors: TypeAlias = Mapping[str, Tensor]

OLDEST = (4, 7)
"""Earlier ones cannot express as much."""
LENGTH = 2048
"""Places that are written of positions that have no end with us."""

ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
"""Their names of ours."""


def write(
    model: nn.Module,
    tokenizers: TokenizerPair,
    directory: Path | str,
    quantization: Quantization | None = None,
) -> None:
    """Write a model for CTranslate2. Without `quantization` its weights are kept in float32.

    Their `Translator(directory, compute_type="int8")` quantises such weights while it reads them.
    """
    model = uncompiled(model)
    settings = settings_of(model)
    if not isinstance(settings, EncoderDecoder):
        raise WeightsError(f"model.kind ({settings.kind}) cannot be written for ctranslate2; only encoder-decoder can")
    refuse_inexpressible(settings)
    theirs = _library()
    # Copies: they quantise in place.
    tensors = {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in model.named_parameters()}
    spec = _spec(theirs, settings)
    _fill_side(spec.encoder, settings, tensors, "source", "encoder")
    _fill_side(spec.decoder, settings, tensors, "target", "decoder")
    _fill_output(spec.decoder, settings, tensors)
    _fill_vocabularies(spec, settings, tokenizers)
    spec.config.layer_norm_epsilon = settings.norm.eps
    spec.validate()
    spec.optimize(quantization=quantization)
    Path(directory).mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _library() -> Any:
    try:
        library = import_module("ctranslate2")
    except ImportError:
        raise WeightsError("ctranslate2 is not installed; run: pip install 'regard[ctranslate2]'") from None
    if tuple(map(int, library.__version__.split(".")[:2])) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise WeightsError(
            f"ctranslate2 {library.__version__} is too old, {wanted} is needed; run: "
            f"pip install 'ctranslate2>={wanted}'"
        )
    return library


# ------------------------------------------------------------------------------------------------ what can be expressed


def refuse_inexpressible(settings: EncoderDecoder) -> None:
    """Refuse settings that CTranslate2 has no place for, each by its name."""
    problems = [f"{name} is {value} and {rule}" for name, value, rule in _problems(settings)]
    if problems:
        raise WeightsError(
            f"the model cannot be written for ctranslate2: {'; '.join(problems)}; keep it as a run directory, or train "
            "it with the settings named"
        )


def _problems(settings: EncoderDecoder) -> Iterator[tuple[str, object, str]]:
    attention, position = settings.attention, settings.position
    if settings.ffn.activation not in ACTIVATIONS:
        yield "ffn.activation", settings.ffn.activation, f"only {', '.join(ACTIVATIONS)} can be written"
    if settings.norm_place == "sandwich":
        yield "norm_place", settings.norm_place, "only pre and post can be written"
    if settings.norm_place == "post" and settings.has_final_norm:
        yield "final_norm", True, "only norm_place pre has one there"
    if settings.layer_scale is not None:
        yield "layer_scale", settings.layer_scale, "only none can be written"
    if settings.value_size != settings.head_size:
        yield "attention.value_size", settings.value_size, f"only head_size ({settings.head_size}) can be written"
    for name in ("qk_norm", "soft_cap", "window"):
        value = getattr(attention, name)
        if value is not None:
            yield f"attention.{name}", getattr(value, "kind", value), "only none can be written"
    if isinstance(position, Rotary) and not isinstance(position.scaling, LinearScaling | None):
        yield "position.scaling.kind", position.scaling.kind, "only linear can be written"
    if position.kind in ("alibi", "transformer-xl"):
        yield "position.kind", position.kind, "only sinusoidal, learned, relative, rotary and none can be written"


# ---------------------------------------------------------------------------------------------------------- the layout


def _spec(theirs: Any, settings: EncoderDecoder) -> Any:
    """Their empty layout for such a model."""
    specs, position = theirs.specs, settings.position
    alike: dict[str, Any] = {
        "num_heads": settings.attention.heads,
        "pre_norm": settings.norm_place == "pre",
        "no_final_norm": not settings.has_final_norm,
        "activation": getattr(specs.Activation, ACTIVATIONS[settings.ffn.activation]),
        "layernorm_embedding": settings.embedding_norm,
        "relative_attention_bias": isinstance(position, Relative),
        "ffn_glu": isinstance(settings.ffn, Gated),
        "rms_norm": isinstance(settings.norm, RmsNorm),
        "head_dim": settings.head_size,
        "num_heads_kv": None if settings.kv_heads == settings.attention.heads else settings.kv_heads,
    }
    if isinstance(position, Rotary):
        alike |= {
            "rotary_dim": position.channels(settings.head_size),
            "rotary_interleave": position.order == "interleaved",
            "rotary_base": position.base,
        }
        if position.scaling is not None:
            assert isinstance(position.scaling, LinearScaling)
            linear = import_module("ctranslate2.specs.attention_spec").RotaryScalingType.Linear
            alike |= {"rotary_scaling_type": linear, "rotary_scaling_factor": position.scaling.factor}
    layouts = specs.transformer_spec
    encoder = layouts.TransformerEncoderSpec(settings.depth, **alike)
    decoder = layouts.TransformerDecoderSpec(settings.decoder_layers, **alike)
    return layouts.TransformerSpec(encoder, decoder)


def _fill_side(spec: Any, settings: EncoderDecoder, tensors: Tensors, side: str, stack: str) -> None:
    """The embedding and the layers of one side."""
    embedding = spec.embeddings[0] if stack == "encoder" else spec.embeddings
    shared = {"source", "target"} <= set(settings.tied)
    embedding.weight = tensors["source.tokens.weight" if shared else f"{side}.tokens.weight"]
    spec.scale_embeddings = settings.embedding_scale
    encodings = _encodings(settings, tensors, side)
    if encodings is not None:
        spec.position_encodings.encodings = encodings
    if settings.embedding_norm:
        _fill_norm(spec.layernorm_embedding, settings, tensors, f"{side}.norm")
    if settings.has_final_norm:
        _fill_norm(spec.layer_norm, settings, tensors, f"{stack}.norm")
    for i, layer in enumerate(spec.layer):
        ours = f"{stack}.{i}"
        _fill_attention(layer.self_attention, settings, tensors, f"{ours}.attention", ("q", "k", "v"))
        if isinstance(settings.position, Relative):
            layer.self_attention.relative_attention_bias = tensors[f"{stack}.position.weight"]
            layer.self_attention.relative_attention_max_distance = _integer(settings.position.longest)
        if stack == "decoder":
            _fill_attention(layer.attention, settings, tensors, f"{ours}.cross", ("q",), ("k", "v"))
        _fill_ffn(layer.ffn, settings, tensors, ours)


def _encodings(settings: EncoderDecoder, tensors: Tensors, side: str) -> Tensor | None:
    """`[places, width]`: what is added to the embeddings; nothing where attention alone knows of places.

    Left to themselves they would add sinusoids of their own, whose channels lie otherwise, and count from one.
    """
    position, width = settings.position, settings.width
    if isinstance(position, Learned):
        return tensors[f"{side}.position.weight"][position.offset :]
    if isinstance(position, Sinusoidal):
        return sinusoidal(torch.arange(LENGTH), width, position.base, position.order, torch.float32)
    return torch.zeros(LENGTH, width) if position.kind == "none" else None


def _fill_attention(spec: Any, settings: EncoderDecoder, tensors: Tensors, name: str, *groups: Sequence[str]) -> None:
    """One attention with its norm; the projections of a group are one matrix, row under row."""
    if settings.attention.scale is not None:
        spec.queries_scale = settings.attention.scale
    for linear, group in zip(spec.linear, (*groups, ("out",)), strict=True):
        linear.weight = torch.cat([tensors[f"{name}.{part}.weight"] for part in group])
        if f"{name}.{group[0]}.bias" in tensors:
            linear.bias = torch.cat([tensors[f"{name}.{part}.bias"] for part in group])
    _fill_norm(spec.layer_norm, settings, tensors, f"{name}_residual.norm")


def _fill_ffn(spec: Any, settings: EncoderDecoder, tensors: Tensors, layer: str) -> None:
    parts = {"linear_0": "up", "linear_1": "down"}
    if isinstance(settings.ffn, Gated):
        parts |= {"linear_0": "gate", "linear_0_noact": "up"}
    for theirs, ours in parts.items():
        _fill_linear(getattr(spec, theirs), tensors, f"{layer}.ffn.{ours}")
    _fill_norm(spec.layer_norm, settings, tensors, f"{layer}.ffn_residual.norm")


def _fill_linear(spec: Any, tensors: Tensors, name: str) -> None:
    spec.weight = tensors[f"{name}.weight"]
    if f"{name}.bias" in tensors:
        spec.bias = tensors[f"{name}.bias"]


def _fill_norm(spec: Any, settings: EncoderDecoder, tensors: Tensors, name: str) -> None:
    weight = tensors[f"{name}.weight"]
    if isinstance(settings.norm, RmsNorm):
        spec.gamma = 1 + weight if settings.norm.unit_offset else weight
    else:
        # Without a bias they would take it for an RMS norm.
        spec.gamma, spec.beta = weight, tensors.get(f"{name}.bias", torch.zeros_like(weight))


def _fill_output(spec: Any, settings: EncoderDecoder, tensors: Tensors) -> None:
    if "output" not in settings.tied:
        weight = tensors["output.weight"]
    elif "source" in settings.tied:
        weight = tensors["source.tokens.weight"]
    else:
        weight = tensors["target.tokens.weight"]
    spec.projection.weight = weight
    if settings.output_bias:
        spec.projection.bias = tensors["output.bias"]
    if settings.output_scale is not None:
        spec.scale_outputs = settings.output_scale


def _integer(value: int) -> Any:
    return import_module("numpy").int32(value)


# ---------------------------------------------------------------------------------------------------------- vocabulary


def _fill_vocabularies(spec: Any, settings: EncoderDecoder, tokenizers: TokenizerPair) -> None:
    """The tokens as strings, and which of them have a role. One name must do for both vocabularies."""
    source, target = tokenizers.source, tokenizers.target
    spec.register_source_vocabulary(vocabulary(source, settings.vocabulary))
    spec.register_target_vocabulary(vocabulary(target, settings.target_size))
    start, end = (target.token(target.role(role)) for role in ("start", "end"))
    if source.token(source.role("end")) != end:
        raise WeightsError(
            f"the end tokens of the two tokenizers ({source.token(source.role('end'))} and {end}) differ, and "
            "ctranslate2 knows one; give both the same text.special.end"
        )
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token = end
    # Were it in no vocabulary, they would add it, and have a token more than the weights.
    known = target.roles.get("unknown")
    spec.config.unk_token = start if known is None else target.token(known)
    spec.config.add_source_eos = True


def vocabulary(tokenizer: Tokenizer, size: int) -> list[str]:
    """The tokens in their order, and names for those rows of the weights that no token has."""
    if tokenizer.size > size:
        raise WeightsError(
            f"the tokenizer has {tokenizer.size:,} tokens and the model {size:,}; give the tokenizer that the model "
            "was trained with"
        )
    tokens = [tokenizer.token(number) for number in range(tokenizer.size)]
    return tokens + [f"<|unused {number}|>" for number in range(tokenizer.size, size)]
