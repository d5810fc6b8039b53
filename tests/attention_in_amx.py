"""Plain 16-bit attention as a CPU with a matrix unit (AMX) computes it: by torch's op. ``test_attention_amx.py`` runs
this file in a process of its own with PADFREE_AMX=1, which hands over on any CPU; the file's name keeps it out of the
other processes. Handed over means: the bits of ``scaled_dot_product_attention``, gradients included.
"""

import attention_case
import pytest
import reference
import torch
import torch.nn.functional as F
from cases import randn
from tiny_models import build

BF16, FP16 = torch.bfloat16, torch.float16

LSE_ALLOWANCE = 2**-13
"""torch sums exponentials of 16-bit scores in float32 by an approximation that is right to 2**-20 each; what was
measured on this log-sum-exp is 6e-5."""


def sdpa(q, k, v, dout, causal, scale=None):
    """Of (batch, seqlen, heads, head_dim) tensors: out and the gradients of q, k and v, laid out as they are."""
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    grouped = q.shape[2] != k.shape[2]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, scale=scale, enable_gqa=grouped)
    gradients = torch.autograd.grad(out, leaves, dout.transpose(1, 2))
    return [x.detach().transpose(1, 2) for x in (out, *gradients)]


def check_same(got, wanted):
    for name, value in zip(("out", "dq", "dk", "dv"), wanted, strict=True):
        assert torch.equal(got[name], value), name
        assert got[name].is_contiguous(), name


@pytest.mark.parametrize("heads", [(2, 2), (6, 2)], ids=["heads", "groups"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
def test_a_plain_dense_call_has_the_bits_of_sdpa(padfree, dtype, causal, heads, threads):
    case = attention_case.inputs([150, 150], [150, 150], heads, (80, 80), dtype)
    lse_wanted, _ = reference.attention(**case, causal=causal)["lse"]
    del case["dlse"]
    got = attention_case.call(padfree, **case, causal=causal)
    check_same(got, sdpa(case["q"], case["k"], case["v"], case["dout"], causal))
    assert (got["lse"] - lse_wanted).abs().max() < LSE_ALLOWANCE
    assert got["lse"].is_contiguous()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_packed_call_has_the_bits_of_its_sequences(padfree, causal, threads):
    lengths = [97, 1, 0, 300]
    case = attention_case.inputs(lengths, lengths, (4, 2), (64, 64), BF16, packed=True)
    del case["dlse"]
    got = attention_case.call(padfree, **case, causal=causal, softmax_scale=0.2)
    begin = 0
    for length in filter(None, lengths):
        rows = slice(begin, begin + length)
        one = [case[name][None, rows] for name in ("q", "k", "v", "dout")]
        wanted = sdpa(*one, causal, 0.2)
        check_same({n: got[n][None, rows] for n in ("out", "dq", "dk", "dv")}, wanted)
        begin += length


def test_queries_need_not_be_as_many_as_keys_without_a_mask(padfree):
    case = attention_case.inputs([70], [200], (2, 2), (40, 40), BF16)
    del case["dlse"]
    check_same(attention_case.call(padfree, **case), sdpa(case["q"], case["k"], case["v"], case["dout"], False))


def test_the_gradient_of_the_log_sum_exp_is_honoured(padfree):
    """torch's op has none: the backward is ours, from torch's results."""
    case = attention_case.inputs([130], [130], (2, 2), (64, 64), BF16)
    got, wanted = attention_case.call(padfree, **case, causal=True), reference.attention(**case, causal=True)
    for name in ("dq", "dk", "dv"):
        value, allowance = wanted[name]
        assert ((got[name].double() - value).abs() <= allowance + 2**-12 * value.abs().max()).all(), name


OURS = {
    "float32": {"dtype": torch.float32},
    "causal, lopsided": {"lengths": ([70], [200]), "causal": True},
    "short": {"lengths": ([63] * 3, [63] * 3)},
    "other head dim of v": {"dims": (64, 32)},
    "window": {"window_size": (30, 0)},
    "softcap": {"softcap": 5.0},
    "sinks": {"s_aux": randn(2, seed=5)},
    "alibi": {"alibi_slopes": randn(2, seed=6).abs()},
    "negative scale": {"softmax_scale": -0.2},
    "queries without keys": {"lengths": ([100, 60], [150, 0]), "packed": True},
}


@pytest.mark.parametrize("changed", OURS.values(), ids=list(OURS))
def test_what_torch_cannot_express_or_speed_up_is_ours(padfree, changed):
    """Within the allowance of our arithmetic, log-sum-exp included, which torch's op misses."""
    options = dict(changed)
    lengths = options.pop("lengths", ([130], [130]))
    dims, dtype = options.pop("dims", (64, 64)), options.pop("dtype", BF16)
    case = attention_case.inputs(*lengths, (2, 2), dims, dtype, packed=options.pop("packed", False))
    attention_case.check(padfree, case, **options)


def test_dropout_is_ours(padfree):
    q, k, v = (randn(1, 130, 2, 64, dtype=BF16, seed=i) for i in range(3))
    torch.manual_seed(1)
    once = padfree.flash_attn_func(q, k, v, 0.5)
    torch.manual_seed(1)
    assert torch.equal(once, padfree.flash_attn_func(q, k, v, 0.5))
    assert not torch.equal(once, padfree.flash_attn_func(q, k, v))


def test_the_report_says_so(padfree):
    assert "(plain bfloat16 and float16 attention by torch, in AMX)" in padfree.report(build("llama"))
