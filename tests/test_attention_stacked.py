"""The qkv-packed and kv-packed forms give the bits of the plain ones, gradients stacked alike."""

import pytest
import torch
from attention_case import call, inputs
from cases import DTYPES, dtype_id
from tolerance import assert_same_bits

OPTIONS = {"causal": True, "window_size": (9, 0), "softcap": 5.0, "softmax_scale": 0.3}


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("stacked", ["qkv", "kv"])
def test_stacked_form(padfree, device, stacked, packed, dtype):
    lengths = [20, 7] if packed else [20, 20]
    heads = (3, 3) if stacked == "qkv" else (6, 3)
    case = inputs(lengths, lengths, heads, (16, 16), dtype, device, packed)
    wanted = call(padfree, **case, **OPTIONS)
    apart = [case["q"]] if stacked == "kv" else []
    stack = torch.stack([case[name] for name in stacked], dim=-3)
    leaves = [tensor.requires_grad_() for tensor in (*apart, stack)]
    bounds = ()
    if packed:
        ends = [case["cu_seqlens_q"], case["cu_seqlens_k"]]
        bounds = (ends[0], 20) if stacked == "qkv" else (*ends, 20, 20)
    function = getattr(padfree, f"flash_attn_{'varlen_' if packed else ''}{stacked}packed_func")
    out, lse, dmask = function(*leaves, *bounds, return_attn_probs=True, **OPTIONS)
    assert dmask is None
    gradients = torch.autograd.grad((out, lse), leaves, (case["dout"], case["dlse"]))
    assert_same_bits(out, wanted["out"], "out")
    assert_same_bits(lse, wanted["lse"], "lse")
    for got, name in zip((*gradients[:-1], *gradients[-1].unbind(-3)), ("dq", "dk", "dv"), strict=True):
        assert_same_bits(got, wanted[name], name)


def test_argument_order_is_flash_attn_2(padfree, device):
    """Positional calls, in the order of ``names`` and then return_attn_probs."""
    case = inputs([8], [8], device=device)
    positional = (0.0, 0.3, True, (3, 0), 2.0, None, True, True)
    names = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic")
    wanted = call(padfree, case["q"], case["k"], case["v"], **dict(zip(names, positional, strict=False)))
    kv = torch.stack([case["k"], case["v"]], dim=2)
    qkv = torch.stack([case["q"], case["k"], case["v"]], dim=2)
    for out, lse, _ in (
        padfree.flash_attn_qkvpacked_func(qkv, *positional),
        padfree.flash_attn_kvpacked_func(case["q"], kv, *positional),
        padfree.flash_attn_func(case["q"], case["k"], case["v"], *positional),
    ):
        assert_same_bits(out, wanted["out"], "out")
        assert_same_bits(lse, wanted["lse"], "lse")


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("flash_attn_qkvpacked_func", (2, 5, 3, 8), "qkv must have 5 dimensions, got 4"),
        ("flash_attn_qkvpacked_func", (2, 5, 2, 4, 8), "qkv must have size 3 in dimension 2, got 2"),
        ("flash_attn_kvpacked_func", (2, 5, 3, 4, 8), "kv must have size 2 in dimension 2, got 3"),
        ("flash_attn_varlen_qkvpacked_func", (5, 4, 8), "qkv must have 4 dimensions, got 3"),
        ("flash_attn_varlen_kvpacked_func", (5, 3, 4, 8), "kv must have size 2 in dimension 1, got 3"),
    ],
)
def test_wrong_stack(padfree, name, shape, text):
    tensor, ends = torch.zeros(shape), torch.tensor([0, 5], dtype=torch.int32)
    q = [torch.zeros(2, 5, 4, 8)] if "_kv" in name else []
    bounds = [] if "varlen" not in name else [ends, 5] if "qkv" in name else [ends, ends, 5, 5]
    with pytest.raises(ValueError) as error:
        getattr(padfree, name)(*q, tensor, *bounds)
    assert str(error.value) == f"attention: {text}"
