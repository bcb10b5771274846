"""Each kernel of a step against the same spelled out in float64."""

from __future__ import annotations

import pytest
import torch
from fused_cases import DEVICE, INTERPRETED, needs_triton
from torch import Tensor, nn

from regard.blocks import settings
from regard.blocks.layers import Attention, RmsNorm

pytestmark = needs_triton


def attention(heads: int, kv_heads: int, size: int, value: int, scale: float | None = None) -> Attention:
    given = settings.Attention(heads=heads, kv_heads=kv_heads, head_size=size, value_size=value, scale=scale)
    return Attention(given, 32)


def spelled_out(q_BKHE: Tensor, k_BCGE: Tensor, v_BCGV: Tensor, seen_BKC: Tensor, scale: float) -> Tensor:
    """Input by input, row by row, head by head."""
    q, k, v = (each.double() for each in (q_BKHE, k_BCGE, v_BCGV))
    group = q.shape[2] // k.shape[2]
    rows = []
    for b, row, head in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        scores = (k[b, :, head // group] @ q[b, row, head]) * scale
        weights = scores.masked_fill(~seen_BKC[b, row], -torch.inf).softmax(0)
        rows.append(weights @ v[b, :, head // group])
    return torch.stack(rows).view(len(q) * q.shape[1], -1)


@pytest.mark.parametrize("time", [0, 1, 21])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "size", "value"),
    [
        (1, 2, 2, 16, 16),
        (4, 2, 2, 32, 32),
        (3, 4, 2, 16, 32),
        (8, 8, 1, 64, 16),
        (5, 4, 1, 128, 16),
        (20, 4, 1, 16, 16),
    ],
)
def test_self_attention(time: int, rows: int, heads: int, kv_heads: int, size: int, value: int) -> None:
    """New keys and values are stored, seen from now on, and no other cell changes."""
    from regard.decoding.fast.triton_step import attend_own

    inputs, steps = 2, 24
    part = attention(heads, kv_heads, size, value, scale=0.3)
    keys = torch.randn(inputs, steps * rows, kv_heads, size, device=DEVICE)
    values = torch.randn(inputs, steps * rows, kv_heads, value, device=DEVICE)
    seen = torch.rand(inputs * rows, steps * rows, device=DEVICE) < 0.4
    new = torch.randn(inputs * rows, heads * size + kv_heads * (size + value), device=DEVICE)
    q, k, v = new.split((heads * size, kv_heads * size, kv_heads * value), dim=1)
    first = time * rows
    after_k, after_v, after_seen = keys.clone(), values.clone(), seen.clone()
    after_k[:, first : first + rows] = k.reshape(inputs, rows, kv_heads, size)
    after_v[:, first : first + rows] = v.reshape(inputs, rows, kv_heads, value)
    own = torch.eye(rows, dtype=torch.bool, device=DEVICE).repeat(inputs, 1)
    after_seen[torch.arange(inputs * rows), first + torch.arange(rows).repeat(inputs)] = True
    visible = torch.cat([seen[:, :first], own], dim=1).view(inputs, rows, -1)
    found = attend_own(part, new, (keys, values), seen, torch.tensor([time], device=DEVICE))
    q = q.reshape(inputs, rows, heads, size)
    expected = spelled_out(q, after_k[:, : first + rows], after_v[:, : first + rows], visible, 0.3)
    assert torch.allclose(found.double(), expected, atol=2e-5)
    assert torch.equal(keys, after_k)
    assert torch.equal(values, after_v)
    assert torch.equal(seen, after_seen)


@pytest.mark.parametrize("lengths", [(1, 5), (64, 63), (70, 129)])
@pytest.mark.parametrize(("rows", "heads", "kv_heads"), [(1, 2, 2), (4, 4, 2), (3, 2, 1)])
def test_cross_attention(lengths: tuple[int, int], rows: int, heads: int, kv_heads: int) -> None:
    """What lies behind an input's end is not even read: it may be anything."""
    from regard.decoding.fast.triton_step import attend_memory

    part, time = attention(heads, kv_heads, 16, 32), max(lengths) + 3
    keys = torch.randn(2, time, kv_heads, 16, device=DEVICE)
    values = torch.randn(2, time, kv_heads, 32, device=DEVICE)
    q = torch.randn(2 * rows, heads * 16, device=DEVICE)
    seen = (torch.arange(time) < torch.tensor(lengths)[:, None])[:, None].expand(2, rows, time).to(DEVICE)
    expected = spelled_out(q.view(2, rows, heads, 16), keys, values, seen, part.scale)
    for b, length in enumerate(lengths):
        keys[b, length:] = values[b, length:] = torch.nan
    found = attend_memory(part, q, (keys, values), torch.tensor(lengths, device=DEVICE))
    assert torch.allclose(found.double(), expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    """The interpreter cannot multiply bfloat16."""
    from regard.decoding.fast.triton_step import attend_memory

    part = attention(2, 2, 16, 16)
    q, keys, values = (torch.randn(shape, device=DEVICE).to(dtype) for shape in ((6, 32), (2, 9, 2, 16), (2, 9, 2, 16)))
    found = attend_memory(part, q, (keys, values), torch.tensor([9, 9], device=DEVICE))
    assert found.dtype == dtype
    everything = torch.ones(2, 3, 9, dtype=torch.bool, device=DEVICE)
    expected = spelled_out(q.view(2, 3, 2, 16), keys, values, everything, part.scale)
    assert torch.allclose(found.double(), expected, atol=0.02)


@pytest.mark.parametrize(("inputs", "rows", "columns"), [(1, 1, 5), (3, 4, 100), (2, 8, 300), (2, 5, 1030)])
def test_masks_follow_their_rows(inputs: int, rows: int, columns: int) -> None:
    from regard.decoding.fast.triton_step import inherit

    seen = torch.rand(inputs * rows, columns, device=DEVICE) < 0.5
    parents = torch.randint(rows, (inputs, rows), device=DEVICE) + rows * torch.arange(inputs, device=DEVICE)[:, None]
    expected = seen[parents.flatten()]
    inherit(seen, parents.flatten(), inputs)
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("places", [None, 7])
def test_embedding(width: int, places: int | None) -> None:
    from regard.decoding.fast.triton_step import embed

    table, tokens = torch.randn(11, width, device=DEVICE), torch.tensor([3, 10, 0], device=DEVICE)
    given = None if places is None else torch.randn(places, width, device=DEVICE)
    found = embed(tokens, table, 2.5, given, torch.tensor([4], device=DEVICE))
    expected = table[tokens] * 2.5 + (0.0 if given is None else given[4])
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("width", [16, 50])
@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms", "rms with offset"])
def test_norms(kind: str, width: int, adds: bool) -> None:
    from regard.decoding.fast.triton_step import add_norm

    norm: nn.LayerNorm | RmsNorm
    if kind.startswith("layer"):
        norm = nn.LayerNorm(width, eps=1e-4, bias=kind == "layer")
    else:
        norm = RmsNorm(width, 1e-4, unit_offset=kind == "rms with offset")
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    norm = norm.to(DEVICE)
    x, added = torch.randn(5, width, device=DEVICE) + 3, torch.randn(5, width, device=DEVICE)
    with torch.inference_mode():
        total, found = add_norm(x, added if adds else None, norm)
        expected = x + added if adds else x
        assert torch.allclose(total, expected, atol=1e-6)
        assert torch.allclose(found.double(), norm.double()(expected.double()), atol=1e-5)
