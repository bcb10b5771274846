"""Models for a CPU."""

from __future__ import annotations

import copy
import weakref
from typing import Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.blocks.attention import Attention
from regard.blocks.layers import Layer
from regard.blocks.recording import is_recorded
from regard.errors import InputError
from regard.models.families import Output


def packs() -> bool:
    """Whether this PyTorch has oneDNN, which both kinds of layer run on."""
    return torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call,no-any-return]


class PackedLinear(nn.Module):
    """What nn.Linear computes in float32, with weights in the order in which oneDNN's kernels read them.

    Plain ones are brought into that order in every call, which costs as much as the product itself when there are few
    rows, as in a step of decoding. The weights are those of the moment; later changes of the originals do not show.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.bias = None if bias_O is None else bias_O.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


class EightBitLinear(nn.Module):
    """x · W with both rounded to 8 bits and summed in 32: each row of x and each row of W has a scale of its own.

    So what is computed for one row does not depend on the others. The largest number of a row becomes ±127.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        if not packs():
            raise InputError('numbers ("int8") needs oneDNN, which this PyTorch does not have; leave it at "float32"')
        weight_OI = weight_OI.detach().float()
        largest_O = weight_OI.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
        rounded_OI = (weight_OI * (127 / largest_O)[:, None]).round().to(torch.int8)
        self.bias = None if bias_O is None else bias_O.detach().float()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded_OI, None)
        # Processors without VNNI add products in pairs, in 16 bits: 7 bits of x keep such a sum within them.
        self.reach = 127 if torch.cpu._is_vnni_supported() else 63
        self.scale_O = largest_O / (127 * self.reach)
        self.zero_O = torch.zeros(len(weight_OI), dtype=torch.int32)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        x_NI = x.flatten(0, -2)
        largest_N1 = x_NI.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        # The kernels take numbers from 0 on, so zero lies in their middle; cutting off what follows the point rounds.
        middle = self.reach + 1
        rounded_NI = (x_NI * (self.reach / largest_N1)).add_(middle + 0.5).to(torch.uint8)
        out_NO: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded_NI, 1.0, middle, self.packed, self.scale_O, self.zero_O, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out_NO = out_NO.mul_(largest_N1) if self.bias is None else torch.addcmul(self.bias, out_NO, largest_N1)
        return out_NO.view(*x.shape[:-1], out_NO.shape[-1])


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
