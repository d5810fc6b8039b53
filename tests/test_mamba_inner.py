"""``mamba_inner_fn``: convolution, projections and scan in a row, against the same in plain torch."""

import pytest
import torch
import torch.nn.functional as F
from cases import DTYPES, cu_seqlens, dtype_id, randn
from scan_case import numbers
from tolerance import assert_near, assert_same_bits, one_unit_off

CHANNELS, RANK, STATES, HIDDEN = 20, 3, 5, 7


def inputs(length=12, batch=2, dtype=torch.float32, device="cpu"):
    """A dict of every tensor of a call, as a mixer has them: xz is channel-last."""
    case = {
        "xz": randn(batch, length, 2 * CHANNELS, dtype=dtype, seed=0).transpose(1, 2),
        "conv1d_weight": randn(CHANNELS, 1, 4, dtype=dtype, seed=1),
        "conv1d_bias": randn(CHANNELS, dtype=dtype, seed=2),
        "x_proj_weight": randn(RANK + 2 * STATES, CHANNELS, dtype=dtype, seed=3) / 4,
        "delta_proj_weight": randn(CHANNELS, RANK, dtype=dtype, seed=4),
        "out_proj_weight": randn(HIDDEN, CHANNELS, dtype=dtype, seed=5) / 4,
        "out_proj_bias": randn(HIDDEN, seed=6),
        "A": -randn(CHANNELS, STATES, seed=7).abs(),
        "D": randn(CHANNELS, seed=8),
        "delta_bias": randn(CHANNELS, seed=9) - 2,
    }
    return {name: x.to(device) for name, x in case.items()}


def norm(x, weight, eps):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def formula(
    xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D, delta_bias,
    B=None, C=None, B_proj_bias=0, C_proj_bias=0, b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None,
    norm_dt_rank=False, eps=1e-6,
):  # fmt: skip
    """The mixer in plain torch, in the dtype of its arguments."""
    x, z = xz.chunk(2, 1)
    x = F.silu(F.conv1d(F.pad(x, (3, 0)), conv1d_weight, conv1d_bias, groups=CHANNELS))
    dt, *rest = F.linear(x.mT, x_proj_weight).split([RANK, *(STATES for m in (B, C) if m is None)], -1)
    dt = norm(dt, dt_rms_weight, eps) if norm_dt_rank else dt
    delta = F.linear(dt, delta_proj_weight)
    delta = norm(delta, dt_rms_weight, eps) if dt_rms_weight is not None and not norm_dt_rank else delta
    dt = F.softplus(delta + delta_bias)
    rows = []
    for given, bias, weight in ((B, B_proj_bias, b_rms_weight), (C, C_proj_bias, c_rms_weight)):
        row = given.mT if given is not None else rest.pop(0) + bias
        rows.append(row if weight is None else norm(row, weight, eps))
    state, out = 0, []
    for t in range(xz.shape[2]):
        state = (dt[:, t, :, None] * A).exp() * state + (dt[:, t] * x[:, :, t])[..., None] * rows[0][:, t, None]
        out.append((state * rows[1][:, t, None]).sum(-1) + D * x[:, :, t])
    return F.linear((torch.stack(out, -1) * F.silu(z)).mT, out_proj_weight, out_proj_bias)


def run(function, case, dtype=None, **options):
    """The output and a gradient for every tensor."""
    leaves = {n: x.detach().to(dtype or x.dtype).requires_grad_() for n, x in case.items()}
    out = function(**leaves, **options)
    dout = randn(*out.shape, seed=20).to(out.dtype)
    return {
        "out": out.detach(),
        **dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout), strict=True)),
    }


def assert_as_good_as_formula(got, case, **options):
    """As near to ``formula`` in float64 as ``formula`` in float32 is."""
    wanted = run(formula, case, torch.float64, **options)
    moved = [case, *({n: one_unit_off(x, seed) for n, x in case.items()} for seed in (1, 2))]
    plain = [run(formula, each, **options) for each in moved]
    for name, x in got.items():
        assert_near(x, wanted[name], [each[name] for each in plain], name)


def check(padfree, case, **options):
    got = run(padfree.mamba_inner_fn, case, **options)
    assert_as_good_as_formula(got, case, **options)
    return got


def test_what_its_parts_compute(padfree, device):
    case = inputs(device=device)
    got = check(padfree, case)
    for level in (0, 1):
        again = run(padfree.mamba_inner_fn, case, checkpoint_lvl=level)
        assert_same_bits(again["out"], got["out"], "out")
    flat = {**case, "conv1d_weight": case["conv1d_weight"].squeeze(1)}
    assert_same_bits(run(padfree.mamba_inner_fn, flat)["out"], got["out"], "out")


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_dtypes(padfree, device, dtype):
    """Each part rounds its result to the dtype of the weights, as calls of the parts do."""
    case = inputs(dtype=dtype, device=device)
    got = run(padfree.mamba_inner_fn, case)

    def parts(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, **rest):
        x, z = xz.chunk(2, 1)
        x = padfree.causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
        dt, B, C = F.linear(x.mT, x_proj_weight).split([RANK, STATES, STATES], -1)
        delta = F.linear(dt, delta_proj_weight).mT
        y = padfree.selective_scan_fn(x, delta, B=B.mT, C=C.mT, z=z, delta_softplus=True, **rest)
        return F.linear(y.mT, out_proj_weight, out_proj_bias.to(dtype))

    for name, x in run(parts, case).items():
        assert got[name].dtype == x.dtype
        assert_same_bits(got[name], x, name)


@pytest.mark.parametrize("norm_dt_rank", [False, True])
def test_norms_and_biases(padfree, device, norm_dt_rank):
    case = inputs(device=device)
    sizes = {"B_proj_bias": STATES, "C_proj_bias": STATES, "b_rms_weight": STATES, "c_rms_weight": STATES,
             "dt_rms_weight": RANK if norm_dt_rank else CHANNELS}  # fmt: skip
    case.update({name: randn(size, seed=30 + i, device=device) for i, (name, size) in enumerate(sizes.items())})
    check(padfree, case, norm_dt_rank=norm_dt_rank)


@pytest.mark.parametrize("given", ["B", "C", "BC"])
def test_given_matrices(padfree, device, given):
    case = inputs(device=device)
    case.update({name: randn(2, STATES, 12, seed=40 + i, device=device) for i, name in enumerate(given)})
    case["x_proj_weight"] = case["x_proj_weight"][: RANK + (2 - len(given)) * STATES]
    check(padfree, case)


@pytest.mark.parametrize("boundaries", ["seq_idx", "cu_seqlens"])
def test_packed_equals_per_sample(padfree, device, boundaries):
    lengths = [5, 1, 33]
    case = inputs(sum(lengths), 1, device=device)
    given = numbers(lengths, device=device) if boundaries == "seq_idx" else cu_seqlens(lengths, device=device)
    packed, begin = padfree.mamba_inner_fn(**case, **{boundaries: given}), 0
    for length in lengths:
        own = {**case, "xz": case["xz"][..., begin : begin + length]}
        assert_as_good_as_formula({"out": packed[:, begin : begin + length]}, own)
        begin += length
