"""The whole Mamba 2 mixer in one call: the composition of its parts, against a float64 one of the same formulas."""

import pytest
import torch
import torch.nn.functional as F
from cases import randn
from tolerance import assert_near, assert_same_bits, one_unit_off

HEADS, HEADDIM, GROUPS, STATE, LENGTH = 4, 6, 2, 8, 70
DIM, CHANNELS = HEADS * HEADDIM, HEADS * HEADDIM + 2 * GROUPS * STATE


def arguments(skip="head"):
    return {
        "zxbcdt": randn(2, LENGTH, DIM + CHANNELS + HEADS, seed=1),
        "conv1d_weight": randn(CHANNELS, 4, seed=2),
        "conv1d_bias": randn(CHANNELS, seed=3),
        "dt_bias": randn(HEADS, seed=4),
        "A": -randn(HEADS, seed=5).exp(),
        "D": randn(*((HEADS,) if skip == "head" else (HEADS, HEADDIM)), seed=6),
        "rmsnorm_weight": randn(DIM, seed=7),
        "outproj_weight": randn(5, DIM, seed=8),
        "outproj_bias": randn(5, seed=9),
        "initial_states": randn(2, HEADS, HEADDIM, STATE, seed=10),
    }


def mixer(
    zxbcdt, conv1d_weight, conv1d_bias=None, dt_bias=None, A=None, D=None, rmsnorm_weight=None, outproj_weight=None,
    outproj_bias=None, initial_states=None, norm_before_gate=True, activation="silu", dt_limit=(0.0, float("inf")),
):  # fmt: skip
    """(out, final states) in the dtype of its arguments, token by token."""
    z, xbc, dt = zxbcdt.split([DIM, CHANNELS, HEADS], -1)
    padded = F.pad(xbc.transpose(1, 2), (3, 0))
    xbc = F.conv1d(padded, conv1d_weight[:, None], conv1d_bias, groups=CHANNELS).transpose(1, 2)
    xbc = F.silu(xbc) if activation else xbc
    x, B, C = xbc.split([DIM, GROUPS * STATE, GROUPS * STATE], -1)
    x = x.unflatten(-1, (HEADS, HEADDIM))
    B, C = (t.unflatten(-1, (GROUPS, STATE)).repeat_interleave(HEADS // GROUPS, 2) for t in (B, C))
    dt = F.softplus(dt + dt_bias).clamp(*dt_limit)
    state = x.new_zeros(len(x), HEADS, HEADDIM, STATE) if initial_states is None else initial_states
    rows = []
    for t in range(zxbcdt.shape[1]):
        decay = (A * dt[:, t]).exp()[..., None, None]
        state = decay * state + dt[:, t, :, None, None] * x[:, t, :, :, None] * B[:, t, :, None]
        rows.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(rows, 1) + x * (D[:, None] if D.dim() == 1 else D)
    y, gate = y.flatten(-2), F.silu(z)
    if rmsnorm_weight is None or not norm_before_gate:
        y = y * gate
    if rmsnorm_weight is not None:
        groups = y.unflatten(-1, (GROUPS, -1))
        y = (groups * (groups.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2) * rmsnorm_weight
        y = y * gate if norm_before_gate else y
    if outproj_weight is not None:
        y = F.linear(y, outproj_weight, outproj_bias)
    return y, state


def with_gradients(out, final_states, leaves):
    """Both results, and the gradient of every tensor."""
    into = (randn(*out.shape, seed=20).to(out.dtype), torch.ones_like(final_states))
    gradients = torch.autograd.grad((out, final_states), list(leaves.values()), into)
    return {"out": out, "final_states": final_states, **dict(zip(leaves, gradients, strict=True))}


def run_mixer(given, **options):
    leaves = {n: x.detach().requires_grad_() for n, x in given.items() if x is not None}
    return with_gradients(*mixer(**{**given, **leaves}, **options), leaves)


def assert_as_good_as_formula(got, given, **options):
    """As near to ``mixer`` in float64 as ``mixer`` in float32 is."""
    tensors = {n: x.detach().cpu() for n, x in given.items() if x is not None}
    wanted = run_mixer({n: x.double() for n, x in tensors.items()}, **options)
    moved = [tensors, *({n: one_unit_off(x, seed) for n, x in tensors.items()} for seed in (1, 2))]
    plain = [run_mixer(each, **options) for each in moved]
    for name, x in got.items():
        assert_near(x, wanted[name], [each[name] for each in plain], name)


@pytest.mark.parametrize("options", [
    {}, {"norm_before_gate": False}, {"activation": None}, {"dt_limit": (0.1, 1.0)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("without", [(), ("rmsnorm_weight",), ("outproj_weight", "outproj_bias"), ("outproj_bias",),
                                     ("initial_states", "conv1d_bias")], ids=str)  # fmt: skip
@pytest.mark.parametrize("skip", ["head", "channel"])
def test_against_float64(padfree, device, skip, without, options):
    given = {n: None if n in without else x.to(device) for n, x in arguments(skip).items()}
    leaves = {n: x.requires_grad_() for n, x in given.items() if x is not None}
    out, final_states = padfree.mamba_split_conv1d_scan_combined(
        **{**given, **leaves}, chunk_size=16, headdim=HEADDIM, ngroups=GROUPS, return_final_states=True, **options
    )
    assert_as_good_as_formula(with_gradients(out, final_states, leaves), given, **options)


def test_packed_rows_equal_calls_alone(padfree, device):
    """seq_idx keeps samples apart in the convolution and in the scan."""
    given = {n: x.to(device) for n, x in arguments().items() if n != "initial_states"}
    lengths, options = [30, 1, 39], {"chunk_size": 64, "headdim": HEADDIM, "ngroups": GROUPS}
    given["zxbcdt"] = given["zxbcdt"][:1]
    index = torch.arange(3, dtype=torch.int32).repeat_interleave(torch.tensor(lengths))[None].to(device)
    packed = padfree.mamba_split_conv1d_scan_combined(**given, seq_idx=index, **options)
    for part, rows in zip(packed.split(lengths, 1), given["zxbcdt"].split(lengths, 1), strict=True):
        assert_as_good_as_formula({"out": part}, {**given, "zxbcdt": rows})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision(padfree, device, dtype):
    """Parameters of the recurrence stay float32, as in a model; the result has the dtype of the activations."""
    given = {n: x.to(device) for n, x in arguments().items()}
    low = ("zxbcdt", "conv1d_weight", "conv1d_bias", "rmsnorm_weight", "outproj_weight", "outproj_bias")
    given = {n: x.to(dtype) if n in low else x for n, x in given.items()}
    out = padfree.mamba_split_conv1d_scan_combined(**given, chunk_size=64, headdim=HEADDIM, ngroups=GROUPS)
    assert out.dtype == dtype
    wanted, _ = mixer(**{n: x.double() for n, x in given.items()})
    plain = [mixer(**{n: one_unit_off(x, seed) for n, x in given.items()})[0] for seed in range(3)]
    assert_near(out, wanted, plain, "out")


def test_the_layer_sends_models_on(padfree, device):
    """transformers' models take None for "not fused" and call convolution and scan themselves."""
    given = {n: x.to(device) for n, x in arguments().items()}
    layer = padfree.layers.mamba_split_conv1d_scan_combined()
    assert layer(**given, chunk_size=64, headdim=HEADDIM, ngroups=GROUPS, seq_idx=None, use_cache=False) is None


def test_the_scan_layer(padfree, device):
    """transformers' names and strays; boundaries by seq_idx, else by cu_seq_lens_q."""
    x, B, C = (randn(1, 9, *shape, seed=i) for i, shape in enumerate([(4, 8), (2, 8), (2, 8)]))
    dt, A = randn(1, 9, 4, seed=4), -torch.ones(4)
    index = torch.tensor([[0] * 5 + [1] * 4], dtype=torch.int32)
    wanted = padfree.mamba_chunk_scan_combined(x, dt, A, B, C, 64, seq_idx=index, dt_softplus=True)
    layer = padfree.layers.mamba_chunk_scan_combined()
    given = {"chunk_size": 8, "z": None, "dt_softplus": True, "use_cache": False, "num_items_in_batch": 3}
    for boundaries in ({"seq_idx": index}, {"cu_seq_lens_q": torch.tensor([0, 5, 9], dtype=torch.int32)}):
        assert_same_bits(layer(x, dt, A, B, C, **given, **boundaries), wanted, "out")
    out, states = layer(x, dt, A, B, C, **given, seq_idx=index, return_final_states=True)
    assert_same_bits(out, wanted, "out")
    assert states.shape == (1, 4, 8, 8)
