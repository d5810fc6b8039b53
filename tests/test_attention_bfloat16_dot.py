"""bfloat16 by the CPU's dot product for it (avx512_bf16): taken where the path and the CPU have it, nowhere else.

What tells it from float32 is that it takes denormals for zero. On every other path these tests show that float32 keeps
them.
"""

import math
import os
from pathlib import Path

import pytest
import torch
from attention_case import call, check, inputs
from cases import embed_in_nan, randn
from restart import LOAD, python
from tiny_models import build

TINY, HUGE = 2.0**-130, 2.0**112
"""A denormal of float32 and of bfloat16, and what brings it back to a normal score."""

SETTING = "PADFREE_AVX512_BF16"


def dot_is_wanted(padfree):
    """By what the machine says: path avx512, and avx512_bf16 in the CPU. A path that the CPU lacks is emulated."""
    flags = Path("/proc/cpuinfo").read_text()
    has = "avx512_bf16" in flags or "avx512f" not in flags
    return padfree.isa() == "avx512" and has and os.environ.get(SETTING) != "0"


def tiny_queries(keys, queries=8, dim=64, dtype=torch.bfloat16):
    """q, k and v whose scores, with softmax_scale=2**16, are about 2 in exact arithmetic."""
    q = torch.full((1, queries, 1, dim), TINY).to(dtype)
    assert q.count_nonzero() == q.numel()
    return q, (randn(1, keys, 1, dim, seed=1) * HUGE).to(dtype), randn(1, keys, 1, dim, dtype=dtype, seed=2)


def spread(padfree, q, k, v):
    """How far the log-sum-exp is from that of equal scores: 0 if denormal queries are zero."""
    lse = call(padfree, q, k, v, softmax_scale=2.0**16)["lse"]
    return (lse - math.log(k.shape[1])).abs().min().item()


def test_the_report_says_which_product_it_is(padfree):
    assert ("(q k^T of bfloat16 by avx512_bf16)" in padfree.report(build("llama"))) == dot_is_wanted(padfree)


@pytest.mark.parametrize("keys", [40, 300])
def test_denormal_queries_are_zero_for_the_dot_product_alone(padfree, keys):
    apart = spread(padfree, *tiny_queries(keys, queries=20))
    assert apart < 1e-6 if dot_is_wanted(padfree) else apart > 0.5


@pytest.mark.parametrize(("queries", "dtype"), [(8, torch.float32), (1, torch.bfloat16)], ids=["float32", "decoding"])
def test_float32_and_decoding_keep_denormals_on_every_path(padfree, queries, dtype):
    assert spread(padfree, *tiny_queries(300, queries, dtype=dtype)) > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_denormal_gradients_are_zero_for_the_dot_product_alone(padfree, dtype):
    """dS = P (dO v^T - delta) adds up to 0 along the keys; without the first term it has one sign."""
    q, k = (randn(1, n, 1, 32, seed=n).abs().to(dtype) for n in (1, 30))
    v = (1 + randn(1, 30, 1, 32, seed=2).abs()).mul(2.0**100).to(dtype)
    dout = torch.full_like(q, TINY)
    dk = call(padfree, q, k, v, dout)["dk"].double()
    lopsided = (dk.sum(1).abs() / dk.abs().sum(1)).min()
    assert lopsided > 0.99 if dot_is_wanted(padfree) and dtype == torch.bfloat16 else lopsided < 0.1


@pytest.mark.parametrize("dims", [(1, 1), (2, 3), (31, 33), (32, 64), (63, 65), (129, 95), (300, 7)], ids=str)
def test_head_dims_around_pairs_and_vectors(padfree, dims):
    case = inputs([70, 0, 33], [70, 5, 40], (6, 2), dims, torch.bfloat16, packed=True)
    got = check(padfree, case, causal=True)
    for name in ("q", "k", "v", "dout"):
        case[name] = embed_in_nan(case[name])
    for name, embedded in call(padfree, **case, causal=True).items():
        assert torch.equal(embedded, got[name]), name


def test_a_setting_forbids_it(padfree):
    if not dot_is_wanted(padfree):
        pytest.skip("nothing to forbid")
    ended = python("-m", "pytest", "-q", Path(__file__).name, **{SETTING: "0"})
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("value", ["1", "no", " "])
def test_a_wrong_setting_stops_the_load(value):
    ended = python("-c", LOAD, **{SETTING: value})
    assert ended.returncode == 1
    assert f"PADFREE_AVX512_BF16 must be 0 or unset, got {value}" in ended.stderr
