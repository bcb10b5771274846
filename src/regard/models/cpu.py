"""Models for fast use on a CPU: linear layers with packed weights, in float32, with 8-bit products or 4-bit weights.

`prepared(model)` returns a model of the same class that runs the same code with other linear layers. It shares all
other parts with the original: embeddings, norms, positions.

N: rows of the input, I: input size, O: output size.
"""

from __future__ import annotations

import copy
import os
import weakref
from typing import Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.layers import Attention, Layer
from regard.blocks.recording import is_recorded
from regard.errors import InputError
from regard.models.families import Decoder, Output

Numbers: TypeAlias = Literal["float32", "int8", "int4"]
"""The dtype of the weights of a prepared model."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
"""Sizes of oneDNN's and PyTorch's caches of compiled kernels."""
GROUP = 32
"""Neighbouring weights of a row that share one scale, with 4 bits."""
CHUNK = 8192
"""Values of a parameter that are checked by one product."""


def bound_kernel_caches() -> None:
    """Limits the kernel caches of this process; call it before the first computation. Variables that are set stay.

    Batches of many shapes fill both caches with a thousand entries each: hundreds of MiB that look like a leak. A few
    entries are as fast, since a decoder repeats a shape at once or hardly ever.
    """
    for name, entries in KERNEL_CACHES.items():
        os.environ.setdefault(name, entries)


def packs() -> bool:
    """Whether this PyTorch has oneDNN, which both kinds of layers need."""
    return torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call,no-any-return]


class PackedLinear(nn.Module):
    """An nn.Linear in float32 with weights in the memory order of oneDNN's kernels.

    nn.Linear reorders its weights in every call, which costs as much as the product if there are few rows, as in a
    decoding step. Later changes of the original weights have no effect.
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
    """x · W with both rounded to 8 bits and summed in 32 bits. Each row of x and of W has its own scale.

    So the result of a row does not depend on other rows. The largest value of a row becomes ±127.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        if not packs():
            raise InputError('numbers ("int8") needs oneDNN, which this PyTorch does not have; use "float32"')
        weight_OI = weight_OI.detach().float()
        largest_O = weight_OI.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
        rounded_OI = (weight_OI * (127 / largest_O)[:, None]).round().to(torch.int8)
        self.bias = None if bias_O is None else bias_O.detach().float()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded_OI, None)
        # Processors without VNNI add pairs of products in 16 bits; 7 bits of x keep such a sum in range.
        self.reach = 127 if torch.cpu._is_vnni_supported() else 63
        self.scale_O = largest_O / (127 * self.reach)
        self.zero_O = torch.zeros(len(weight_OI), dtype=torch.int32)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        x_NI = x.flatten(0, -2)
        largest_N1 = x_NI.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        # The kernels take unsigned values, so zero is in the middle. Conversion truncates, so 0.5 is added to round.
        middle = self.reach + 1
        rounded_NI = (x_NI * (self.reach / largest_N1)).add_(middle + 0.5).to(torch.uint8)
        out_NO: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded_NI, 1.0, middle, self.packed, self.scale_O, self.zero_O, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out_NO = out_NO.mul_(largest_N1) if self.bias is None else torch.addcmul(self.bias, out_NO, largest_N1)
        return out_NO.view(*x.shape[:-1], out_NO.shape[-1])


class EightBitWeights(nn.Module):
    """x · W with the weights rounded to 8 bits, and x and the result to bfloat16. Each row of W has its own scale.

    For decoders, whose inputs have outliers that 8 bits cannot hold. It is fast for few rows, whose time is that of
    reading the weights; many rows take longer than in float32.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.bias = None if bias_O is None else bias_O.detach().float()
        self.outputs, inputs = weight_OI.shape
        self.missing = -inputs % GROUP
        # The kernels read whole groups of inputs, and outputs in blocks of 16, without a check.
        self.pack(functional.pad(weight_OI.detach().float(), (0, self.missing, 0, -self.outputs % 16)))

    def pack(self, weight_OI: Tensor) -> None:
        largest_O = weight_OI.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
        self.scale = (largest_O / 127).bfloat16()  # rounded before the weights are
        self.packed = (weight_OI / self.scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)

    def product(self, x_NI: Tensor) -> Tensor:
        out_NO: Tensor = torch.ops.aten._weight_int8pack_mm(x_NI, self.packed, self.scale)
        return out_NO

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        x_NI = functional.pad(x.flatten(0, -2), (0, self.missing)).bfloat16()
        out_NO = self.product(x_NI)[:, : self.outputs].float()
        out_NO = out_NO if self.bias is None else out_NO + self.bias
        return out_NO.view(*x.shape[:-1], self.outputs)


class FourBitWeights(EightBitWeights):
    """As `EightBitWeights`, with 4 bits: 16 equal steps from the least to the largest weight of a group."""

    def pack(self, weight_OI: Tensor) -> None:
        weight_OGI = weight_OI.view(len(weight_OI), -1, GROUP)
        least, most = weight_OGI.amin(-1), weight_OGI.amax(-1)
        scale_OG = ((most - least) / 15).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        zero_OG = (least + 8 * scale_OG.float()).bfloat16()  # the weight of the value 8
        steps_OGI = (weight_OGI - zero_OG.float()[..., None]) / scale_OG.float()[..., None]
        values_OI = (steps_OGI + 8).round().clamp(0, 15).to(torch.int32).flatten(1)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values_OI, 1)
        self.scale = torch.stack([scale_OG, zero_OG], -1).transpose(0, 1).contiguous()

    def product(self, x_NI: Tensor) -> Tensor:
        out_NO: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x_NI, self.packed, GROUP, self.scale)
        return out_NO


AnyLinear: TypeAlias = PackedLinear | EightBitLinear | EightBitWeights


def prepared(model: AnyModule, numbers: Numbers = "float32") -> AnyModule:
    """A copy of the model for inference on a CPU, with its current weights; the original stays as it is.

    In float32 results differ by rounding only. With int8, weights and inputs of products are rounded to 8 bits, which
    takes a quarter of the memory and about a third of the time, and changes some words; inputs of decoders are rounded
    to bfloat16 instead. With int4, weights are rounded to 4 bits, for decoders that write one text at a time.
    """
    if numbers not in get_args(Numbers):
        raise InputError(f"numbers ({numbers}) is not known; choose one of {', '.join(get_args(Numbers))}")
    if is_prepared(model):
        raise InputError("this model is already prepared; give the original model")
    wrong = {f"{each.dtype} on {each.device}" for each in model.parameters() if not _is_plain(each)}
    if wrong:
        raise InputError(f'a model in {wrong.pop()} cannot be prepared for a CPU; use model.to("cpu").float()')
    if model.training:
        raise InputError("a model in training mode cannot be prepared; call model.eval() first")
    if numbers == "float32" and not packs():
        return model
    kinds: dict[Numbers, type[AnyLinear]]
    eight = EightBitWeights if isinstance(model, Decoder) else EightBitLinear
    kinds = {"float32": PackedLinear, "int8": eight, "int4": FourBitWeights}
    twin = _twin(model, kinds[numbers])
    assert isinstance(twin, type(model))
    return twin


def fixed(model: AnyModule) -> AnyModule:
    """A model whose weights will not change any more: `prepared`, if that is possible, so that decoding does not check
    them in each call."""
    return prepared(model) if can_pack(model) else model


def is_prepared(model: nn.Module) -> bool:
    return any(isinstance(module, AnyLinear) for module in model.modules())


def is_watched(model: nn.Module) -> bool:
    """Whether forward hooks or a recorder expect calls of the model's modules."""
    return is_recorded(model) or any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def can_pack(model: nn.Module) -> bool:
    """Whether the model can be prepared in float32."""
    plain = packs() and not model.training and all(_is_plain(each) for each in model.parameters())
    return plain and not is_prepared(model)


def _is_plain(parameter: Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _checksum(model: nn.Module) -> Tensor:
    """Products of all parameters, in chunks, with the same random numbers; and the values after the last chunk.

    Addresses and version counters do not show writes through `.data` or NumPy, nor those in inference mode. These
    products show every change that is larger than rounding, permutations included.
    """
    random = torch.randn(CHUNK, generator=torch.Generator().manual_seed(0))
    found = []
    for parameter in model.parameters():
        flat = parameter.detach().flatten()
        whole = len(flat) // CHUNK * CHUNK
        found += [flat[:whole].view(-1, CHUNK) @ random, flat[whole:]]
    return torch.cat(found)


_packed: weakref.WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], Tensor, nn.Module]]
_packed = weakref.WeakKeyDictionary()


def current_packed(model: AnyModule) -> AnyModule:
    """`prepared(model)` in float32, kept until the model's weights change in any way."""
    known, checksum = _packed.get(model), _checksum(model)
    versions = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters()]
    if known is None or known[0] != versions or not torch.equal(known[1], checksum):
        known = _packed[model] = versions, checksum, prepared(model)
    twin = known[2]
    assert isinstance(twin, type(model))
    return twin


def _twin(module: nn.Module, kind: type[AnyLinear]) -> nn.Module:
    """The module itself if nothing in it changes; otherwise a shallow copy with other parts."""
    if type(module) is nn.Linear:
        return kind(module.weight, module.bias)
    if type(module) is Output:  # one product that includes weights, scale and bias
        weight_VD = module.matrix if module.scale is None else module.matrix * module.scale
        output = copy.copy(module)
        output._parameters = dict.fromkeys(module._parameters)
        output.__dict__.pop("product", None)  # a plain attribute would hide the module
        output._modules = {"product": kind(weight_VD, module.bias)}
        return output
    parts = {name: part if part is None else _twin(part, kind) for name, part in module._modules.items()}
    if isinstance(module, Layer):
        parts["attention"] = _joined(module.attention, parts["attention"], kind)
    if all(parts[name] is part for name, part in module._modules.items()):
        return module
    twin = copy.copy(module)
    twin._modules = parts
    return twin


def _joined(attention: Attention, twin: nn.Module | None, kind: type[AnyLinear]) -> nn.Module | None:
    three = (attention.q, attention.k, attention.v)
    if type(attention) is not Attention or twin is None or any(type(each) is not nn.Linear for each in three):
        return twin
    biases: list[Tensor | None] = [each.bias for each in three]
    given = [each for each in biases if each is not None]
    joined = kind(torch.cat([each.weight for each in three]), torch.cat(given) if given else None)
    left = {name: part for name, part in twin._modules.items() if name not in ("q", "k", "v")}
    twin.__dict__.pop("joined", None)  # a plain attribute would hide the module
    twin._modules = {**left, "joined": joined}
    return twin
