"""Linear layers for a CPU that will not be trained: weights laid out once for the processor, perhaps in 8 bits.

N: rows of the input, I: inputs, O: outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import InputError


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
