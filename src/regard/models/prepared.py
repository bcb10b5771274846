"""prepared(model): the same model for fast use on a CPU, in float32 or with 8-bit products.

What comes back is a model of the same class, through whose layers the same code runs; its linear layers are others. It
shares with the given one what did not change: embeddings, norms, positions.
"""

from __future__ import annotations

import copy
import weakref
from typing import Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.blocks.attention import Attention
from regard.blocks.packed_linear import EightBitLinear, PackedLinear, packs
from regard.blocks.recording import is_recorded
from regard.blocks.stack import Layer
from regard.errors import InputError
from regard.models.heads import Output

Numbers: TypeAlias = Literal["float32", "int8"]
"""What the products of a prepared model are computed in."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Weights: TypeAlias = tuple[list[tuple[int, int]], list[float]]

_kept: weakref.WeakKeyDictionary[nn.Module, tuple[Weights, nn.Module]] = weakref.WeakKeyDictionary()


def prepared(model: AnyModule, numbers: Numbers = "float32") -> AnyModule:
    """The model as it is now, for use on a CPU and not for training; the given one stays as it is.

    In float32 results are the same but for rounding. With int8, weights and what they are multiplied with are rounded
    to 8 bits, which takes a quarter of the memory and about a third of the time, and changes some words.
    """
    if numbers not in get_args(Numbers):
        raise InputError(f"numbers ({numbers}) must be one of {', '.join(get_args(Numbers))}; choose one")
    if is_prepared(model):
        raise InputError("this model is prepared already; prepare the one that it was made from")
    wrong = {f"{each.dtype} on {each.device}" for each in model.parameters() if not _plain(each)}
    if wrong:
        raise InputError(f'a model in {wrong.pop()} cannot be prepared for a CPU; move it: model.to("cpu").float()')
    if model.training:
        raise InputError("a model in training mode cannot be prepared; call model.eval() first")
    if numbers == "float32" and not packs():
        return model
    twin = _twin(model, EightBitLinear if numbers == "int8" else PackedLinear)
    assert isinstance(twin, type(model))
    return twin


def kept_prepared(model: AnyModule) -> AnyModule:
    """`prepared(model)` in float32, made once and kept for as long as the model lives and has the same weights."""
    state = _state(model)
    known = _kept.get(model)
    if known is None or known[0] != state:
        known = _kept[model] = state, prepared(model)
    twin = known[1]
    assert isinstance(twin, type(model))
    return twin


def _state(model: nn.Module) -> Weights:
    """Changes with the weights: where they lie, how often they were written to, and some of their values."""
    weights = [each.detach() for each in model.parameters()]
    # What is made in inference mode is not counted, nor is what is written through `.data`: hence the values.
    places = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in weights]
    some = [each.flatten()[:: max(each.numel() // 2, 1)] for each in weights if each.numel()]
    return places, torch.cat(some).tolist()


def is_prepared(model: nn.Module) -> bool:
    """Whether a model comes from `prepared`."""
    return any(isinstance(module, PackedLinear | EightBitLinear) for module in model.modules())


def preparable(model: nn.Module) -> bool:
    """Whether preparing a model in float32 is possible and changes nothing that someone may watch."""
    return (
        packs()
        and not model.training
        and all(_plain(each) for each in model.parameters())
        and not is_watched(model)
        and not is_prepared(model)
    )


def is_watched(model: nn.Module) -> bool:
    """Whether hooks wait for the model's parts to be called, or a recorder listens to them."""
    return is_recorded(model) or any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _plain(parameter: Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _twin(module: nn.Module, kind: type[PackedLinear | EightBitLinear]) -> nn.Module:
    """The module itself where nothing in it changes; otherwise a copy with other parts and the same tensors."""
    if type(module) is nn.Linear:
        return kind(module.weight, module.bias)
    if type(module) is Output:
        return _ready_output(module, kind)
    parts = {name: part if part is None else _twin(part, kind) for name, part in module._modules.items()}
    if isinstance(module, Layer):
        parts["attention"] = _joined(module.attention, parts["attention"], kind)
    if all(parts[name] is part for name, part in module._modules.items()):
        return module
    twin = copy.copy(module)
    twin._modules = parts
    return twin


def _ready_output(output: Output, kind: type[PackedLinear | EightBitLinear]) -> Output:
    """The same scores by another product, which holds weights, scale and bias."""
    weight_VD = output.matrix
    twin = copy.copy(output)
    twin._parameters = dict.fromkeys(output._parameters)
    twin.__dict__.pop("product", None)  # a plain attribute would hide the part
    twin._modules = {"product": kind(weight_VD if output.scale is None else weight_VD * output.scale, output.bias)}
    return twin


def _joined(
    attention: Attention, twin: nn.Module | None, kind: type[PackedLinear | EightBitLinear]
) -> nn.Module | None:
    """Self-attention with one product in the place of three."""
    three = (attention.q, attention.k, attention.v)
    if type(attention) is not Attention or twin is None or any(type(each) is not nn.Linear for each in three):
        return twin
    biases: list[Tensor | None] = [each.bias for each in three]
    given = [each for each in biases if each is not None]
    joined = kind(torch.cat([each.weight for each in three]), torch.cat(given) if given else None)
    left = {name: part for name, part in twin._modules.items() if name not in ("q", "k", "v")}
    twin.__dict__.pop("joined", None)  # a plain attribute would hide the part
    twin._modules = {**left, "joined": joined}
    return twin
