"""Writes an encoder-decoder for CTranslate2, whose `Translator` reads the directory (extra `ctranslate2`).

CTranslate2 works on token strings, so the vocabularies are written too. It adds the end of the source and the start of
the target itself. A language tag must be the first token of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.positions import sinusoidal
from regard.blocks.recording import network_of
from regard.blocks.settings import Activation, Gated, Learned, LinearScaling, Relative, RmsNorm, Rotary, Sinusoidal
from regard.errors import WeightsError, extra_module
from regard.models.settings import EncoderDecoder, complete
from regard.text.tokenizer import Tokenizer, TokenizerPair

LENGTH = 2048
"""The number of positions that are written where ours have no end."""
ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "ffn.kind": ("dense", "gated"),
    "ffn.activation": tuple(ACTIVATIONS),
    "norm_place": ("pre", "post"),
    "parallel": (False,),
    "layer_scale": (None,),
    "attention.qk_norm.kind": (None,),
    "attention.soft_cap": (None,),
    "attention.window": (None,),
    "attention.latent.rank": (None,),
    "attention.sinks": (False,),
    "position.kind": ("sinusoidal", "learned", "relative", "rotary", "none"),
    "position.relative.buckets": (None,),
    "position.scaling.kind": (None, "linear"),
}
"""The values of settings that CTranslate2 has."""


def write_ctranslate2(model: nn.Module, tokenizers: TokenizerPair, directory: Path | str) -> None:
    """Write a model for CTranslate2 in float32.

    `Translator(directory, compute_type="int8")` quantizes the weights while it reads them.
    """
    network = network_of(model)
    settings = network.settings
    if not isinstance(settings, EncoderDecoder):
        raise WeightsError(f"model.kind ({settings.kind}) cannot be written for ctranslate2, only encoder-decoder can")
    if problems := list(_problems(settings)):
        raise WeightsError(f"the model cannot be written for ctranslate2: {'; '.join(problems)}; train another one")
    library = extra_module("ctranslate2", "the package ctranslate2", "ctranslate2", "this format", WeightsError)
    spec = _Writer(library, settings, network).write()
    _add_vocabularies(spec, settings, tokenizers)
    spec.config.layer_norm_epsilon = settings.norm.eps
    spec.validate()
    spec.optimize()
    Path(directory).mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _problems(settings: EncoderDecoder) -> Iterator[str]:
    """Yield each setting that CTranslate2 does not have, its value and the supported ones."""
    supported = SUPPORTED | {"attention.value_size": (settings.head_size,)}
    if settings.norm_place == "post":
        supported["final_norm"] = (False,)
    values = complete(settings)
    for name, known in supported.items():
        if (value := values.get(name)) not in known:
            named = " or ".join("none" if each is None else str(each) for each in known)
            yield f"{name} is {value}, only {named} is supported"


class _Writer:
    """Fills CTranslate2's specification of a model."""

    def __init__(self, library: Any, settings: EncoderDecoder, model: nn.Module) -> None:
        self.library, self.settings = library, settings
        # Copies: CTranslate2 changes them in place.
        self.tensors: Mapping[str, Tensor] = {
            name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in model.named_parameters()
        }

    def write(self) -> Any:
        settings, layouts, options = self.settings, self.library.specs.transformer_spec, self.options()
        encoder = layouts.TransformerEncoderSpec(settings.depth, **options)
        decoder = layouts.TransformerDecoderSpec(settings.decoder_layers, **options)
        self.stack(encoder, encoder.embeddings[0], "source", "encoder")
        self.stack(decoder, decoder.embeddings, "target", "decoder")
        owner = "output"
        if "output" in settings.tied:
            owner = "source.tokens" if "source" in settings.tied else "target.tokens"
        decoder.projection.weight = self.tensors[f"{owner}.weight"]
        if settings.output_bias:
            decoder.projection.bias = self.tensors["output.bias"]
        if settings.output_scale is not None:
            decoder.scale_outputs = settings.output_scale
        return layouts.TransformerSpec(encoder, decoder)

    def options(self) -> dict[str, Any]:
        settings, position = self.settings, self.settings.position
        options: dict[str, Any] = {
            "num_heads": settings.attention.heads,
            "pre_norm": settings.norm_place == "pre",
            "no_final_norm": not settings.has_final_norm,
            "activation": getattr(self.library.specs.Activation, ACTIVATIONS[settings.ffn.activation]),
            "layernorm_embedding": settings.embedding_norm,
            "relative_attention_bias": isinstance(position, Relative),
            "ffn_glu": isinstance(settings.ffn, Gated),
            "rms_norm": isinstance(settings.norm, RmsNorm),
            "head_dim": settings.head_size,
            "num_heads_kv": None if settings.kv_heads == settings.attention.heads else settings.kv_heads,
        }
        if isinstance(position, Rotary):
            dim, turned = position.channels(settings.head_size), position.order == "interleaved"
            options |= {"rotary_dim": dim, "rotary_interleave": turned, "rotary_base": position.base}
            if isinstance(position.scaling, LinearScaling):
                kinds = import_module("ctranslate2.specs.attention_spec").RotaryScalingType
                options |= {"rotary_scaling_type": kinds.Linear, "rotary_scaling_factor": position.scaling.factor}
        return options

    def stack(self, spec: Any, embedding: Any, side: str, stack: str) -> None:
        settings, tensors = self.settings, self.tensors
        shared = {"source", "target"} <= set(settings.tied)
        embedding.weight = tensors["source.tokens.weight" if shared else f"{side}.tokens.weight"]
        spec.scale_embeddings = settings.embedding_scale
        if (encodings := self.encodings(side)) is not None:
            spec.position_encodings.encodings = encodings
        if settings.embedding_norm:
            self.norm(spec.layernorm_embedding, f"{side}.norm")
        if settings.has_final_norm:
            self.norm(spec.layer_norm, f"{stack}.norm")
        for i, layer in enumerate(spec.layer):
            ours = f"{stack}.{i}"
            self.attention(layer.self_attention, f"{ours}.attention", "qkv")
            if isinstance(settings.position, Relative):
                layer.self_attention.relative_attention_bias = tensors[f"{stack}.position.weight"]
                longest = import_module("numpy").int32(settings.position.longest)
                layer.self_attention.relative_attention_max_distance = longest
            if stack == "decoder":
                self.attention(layer.attention, f"{ours}.cross", "q", "kv")
            gated = isinstance(settings.ffn, Gated)
            self.linear(layer.ffn.linear_0, f"{ours}.ffn", "gate" if gated else "up")
            if gated:
                self.linear(layer.ffn.linear_0_noact, f"{ours}.ffn", "up")
            self.linear(layer.ffn.linear_1, f"{ours}.ffn", "down")
            self.norm(layer.ffn.layer_norm, f"{ours}.ffn_residual.norm")

    def encodings(self, side: str) -> Tensor | None:
        """Return the `[positions, width]` that are added to the embeddings; None if only attention uses positions.

        By default CTranslate2 adds its own sinusoids, which have another order and start at one.
        """
        position, width = self.settings.position, self.settings.width
        if isinstance(position, Learned):
            return self.tensors[f"{side}.position.weight"][position.offset :]
        if isinstance(position, Sinusoidal):
            return sinusoidal(torch.arange(LENGTH), width, position.base, position.order, torch.float32)
        return torch.zeros(LENGTH, width) if position.kind == "none" else None

    def attention(self, spec: Any, name: str, *groups: str) -> None:
        if self.settings.attention.scale is not None:
            spec.queries_scale = self.settings.attention.scale
        for linear, group in zip(spec.linear, groups, strict=False):
            self.linear(linear, name, *group)
        self.linear(spec.linear[-1], name, "out")
        self.norm(spec.layer_norm, f"{name}_residual.norm")

    def linear(self, spec: Any, name: str, *parts: str) -> None:
        """Fill one linear layer with several of ours, one below the other."""
        spec.weight = torch.cat([self.tensors[f"{name}.{part}.weight"] for part in parts])
        if f"{name}.{parts[0]}.bias" in self.tensors:
            spec.bias = torch.cat([self.tensors[f"{name}.{part}.bias"] for part in parts])

    def norm(self, spec: Any, name: str) -> None:
        weight, norm = self.tensors[f"{name}.weight"], self.settings.norm
        if isinstance(norm, RmsNorm):
            spec.gamma = 1 + weight if norm.unit_offset else weight
        else:
            # Without a bias, CTranslate2 takes it for an RMS norm.
            spec.gamma, spec.beta = weight, self.tensors.get(f"{name}.bias", torch.zeros_like(weight))


def _add_vocabularies(spec: Any, settings: EncoderDecoder, tokenizers: TokenizerPair) -> None:
    source, target = tokenizers.source, tokenizers.target
    spec.register_source_vocabulary(_token_strings(source, settings.vocabulary))
    spec.register_target_vocabulary(_token_strings(target, settings.target_size))
    start, end = (target.token(target.role(role)) for role in ("start", "end"))
    if source.token(source.role("end")) != end:
        raise WeightsError("the end tokens of the two tokenizers differ; give both the same text.special.end")
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token = end
    # A token that is in no vocabulary would be added, and there would be one more than the weights have rows.
    unknown = target.roles.get("unknown")
    spec.config.unk_token = start if unknown is None else target.token(unknown)
    spec.config.add_source_eos = True


def _token_strings(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return all tokens by id, with made-up names for rows of the weights that have no token."""
    if tokenizer.size > size:
        raise WeightsError(f"the tokenizer has {tokenizer.size:,} tokens and the model {size:,}; give the model's own")
    tokens = [tokenizer.token(number) for number in range(tokenizer.size)]
    return tokens + [f"<|unused {number}|>" for number in range(tokenizer.size, size)]
