"""The forward alone in the 16-bit dtypes: what every backend has, on sizes that an emulated GPU takes too."""

import pytest
import reference
import torch
from attention_case import call, inputs
from cases import LAYOUTS, dtype_id, randn
from conftest import DEVICES
from tolerance import assert_close, assert_same_bits, unit_roundoff

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=dtype_id)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
FORMS = pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])


def forward_only(case):
    return {name: tensor for name, tensor in case.items() if name not in ("dout", "dlse")}


def check(padfree, case, **options):
    """Compares out and lse with the oracle.

    Tensor cores take the weights in the dtype of v: each is off by one more rounding, and sum p |v| is what the oracle
    gives for |v|. Weights under the smallest normal number of that dtype are off by as much as that number.
    """
    case = forward_only(case)
    got = call(padfree, **case, **options)
    if "s_aux" in options:
        options["sinks"] = options.pop("s_aux")
    wanted = reference.attention(**case, **options)
    value, allowance = wanted["out"]
    if DEVICES != ["cpu"]:
        dtype = case["q"].dtype
        magnitude, _ = reference.attention(**{**case, "v": case["v"].abs()}, **options)["out"]
        longest = case["k"].shape[-3]
        hidden = torch.finfo(dtype).tiny * longest * case["v"].abs().max().double().cpu()
        allowance = allowance + 2 * unit_roundoff(dtype) * magnitude + hidden
    assert_close(got["out"], value, allowance, "out")
    assert_close(got["lse"], *wanted["lse"], "lse")
    assert got["out"].dtype == case["q"].dtype
    assert got["out"].is_contiguous()
    return got


@FORMS
@HALF
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=str)
def test_grouped_heads(padfree, device, heads, dtype, packed):
    lengths = [33, 5, 20] if packed else [33, 33]
    check(padfree, inputs(lengths, lengths, heads, (64, 64), dtype, device, packed), causal=True)


@CAUSAL
@FORMS
@pytest.mark.parametrize("lengths", [(5, 2), (2, 5), (1, 9), (9, 1), (130, 67), (67, 130)], ids=str)
def test_unequal_lengths_and_dead_rows(padfree, device, lengths, packed, causal):
    seqlen_q, seqlen_k = lengths
    case = inputs([seqlen_q], [seqlen_k], (2, 1), (64, 64), torch.bfloat16, device, packed)
    got = check(padfree, case, causal=causal)
    dead = max(seqlen_q - seqlen_k, 0) if causal else 0
    assert int(got["lse"].isneginf().sum()) == 2 * dead
    assert torch.count_nonzero(got["out"].flatten(0, -3)[:dead]) == 0


@HALF
@pytest.mark.parametrize("dim", [8, 40, 59, 64, 96, 111, 128, 160, 192, 256])
def test_head_dims(padfree, device, dim, dtype):
    check(padfree, inputs([19], [70], (2, 1), (dim, dim), dtype, device), causal=True)


@pytest.mark.parametrize("dims", [(64, 40), (40, 64), (192, 128), (8, 256), (17, 3)], ids=str)
def test_value_dim_of_its_own(padfree, device, dims):
    check(padfree, inputs([21, 3], [30, 9], (2, 2), dims, torch.float16, device, packed=True))


@CAUSAL
@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49, 63, 64, 65, 127, 128, 129, 193])
def test_every_tile_edge(padfree, device, length, causal):
    check(padfree, inputs([length], [length], (1, 1), (64, 64), torch.bfloat16, device), causal=causal)


@pytest.mark.parametrize("window", [(0, 0), (3, 0), (64, 0), (5, 70), (-1, 1), (99, -1)], ids=str)
@pytest.mark.parametrize("lengths", [(130, 130), (70, 150), (150, 70)], ids=str)
def test_window(padfree, device, window, lengths):
    case = inputs([lengths[0]], [lengths[1]], (1, 1), (64, 64), torch.bfloat16, device)
    check(padfree, case, window_size=window)


@HALF
@pytest.mark.parametrize("softcap", [0.7, 20.0])
def test_softcap(padfree, device, softcap, dtype):
    check(padfree, inputs([40], [70], (2, 1), (32, 32), dtype, device), softcap=softcap, causal=True)


@pytest.mark.parametrize("per_sequence", [False, True], ids=["heads", "batch-heads"])
@FORMS
def test_alibi(padfree, device, packed, per_sequence):
    slopes = randn(*((2, 4) if per_sequence else (4,)), seed=9, device=device).abs()
    case = inputs([40, 40], [66, 66], (4, 2), (32, 32), torch.bfloat16, device, packed)
    check(padfree, case, alibi_slopes=slopes, causal=True)


@FORMS
def test_sinks(padfree, device, packed):
    sinks = torch.tensor([0.5, -30.0, 4.0, float("-inf")], device=device)
    case = inputs([40, 3], [66, 0], (4, 2), (32, 32), torch.bfloat16, device, True) if packed else None
    case = case or inputs([40, 40], [66, 66], (4, 2), (32, 32), torch.bfloat16, device)
    got = check(padfree, case, s_aux=sinks, causal=True)
    if packed:  # no keys at all: nothing but the sink
        assert torch.count_nonzero(got["out"][40:]) == 0


def test_scales(padfree, device):
    case = inputs([20], [70], dims=(64, 64), dtype=torch.bfloat16, device=device)
    for softmax_scale in (0.0, 1.0, 0.37, -0.25):
        check(padfree, case, softmax_scale=softmax_scale)


def test_ragged_packs_with_empty_sequences_and_slack(padfree, device):
    lengths_q, lengths_k = [5, 0, 130, 7, 0, 33], [9, 3, 150, 0, 0, 20]
    case = inputs(lengths_q, lengths_k, (4, 2), (64, 64), torch.bfloat16, device, packed=True)
    pad = {name: torch.full_like(case[name][:3], float("nan")) for name in ("q", "k", "v")}
    plain = check(padfree, case, causal=True)
    slack = dict(case, **{name: torch.cat([case[name], pad[name]]) for name in pad})
    got = call(padfree, **forward_only(slack), causal=True)
    assert_same_bits(got["out"][:-3], plain["out"], "out")
    assert torch.count_nonzero(got["out"][-3:]) == 0
    assert got["lse"][:, -3:].isneginf().all()


def test_more_sequences_than_threads_lay_out(padfree, device):
    lengths = [n % 4 for n in range(300)]
    check(padfree, inputs(lengths, lengths, (1, 1), (16, 16), torch.bfloat16, device, packed=True), causal=True)


@pytest.mark.parametrize("poison", [float("nan"), 1e4])
def test_samples_do_not_see_each_other(padfree, device, poison):
    lengths = [70, 40, 65]
    case = inputs(lengths, lengths, (2, 1), (64, 64), torch.bfloat16, device, packed=True)
    clean = call(padfree, **forward_only(case), causal=True)
    for name in ("q", "k", "v"):
        case[name][:70] = poison
    got = call(padfree, **forward_only(case), causal=True)
    assert_same_bits(got["out"][70:], clean["out"][70:], "out")
    assert_same_bits(got["lse"][:, 70:], clean["lse"][:, 70:], "lse")


def test_packed_is_sample_by_sample(padfree, device):
    lengths_q, lengths_k = [70, 1, 130], [70, 66, 131]
    case = forward_only(inputs(lengths_q, lengths_k, (4, 2), (64, 64), torch.bfloat16, device, packed=True))
    packed = call(padfree, **case, causal=True)
    rows, keys = 0, 0
    for seqlen_q, seqlen_k in zip(lengths_q, lengths_k, strict=True):
        q, k, v = (
            case[name][at : at + n][None]
            for name, at, n in (("q", rows, seqlen_q), ("k", keys, seqlen_k), ("v", keys, seqlen_k))
        )
        alone = call(padfree, q, k, v, causal=True)
        assert_same_bits(packed["out"][rows : rows + seqlen_q], alone["out"][0], "out")
        assert_same_bits(packed["lse"][:, rows : rows + seqlen_q], alone["lse"][0], "lse")
        rows, keys = rows + seqlen_q, keys + seqlen_k


@FORMS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_never_changes_the_answer(padfree, device, layout, packed):
    case = forward_only(inputs([37, 37], [37, 37], (4, 2), (24, 24), torch.bfloat16, device, packed))
    plain = call(padfree, **case, causal=True)
    for name in ("q", "k", "v"):
        case[name] = LAYOUTS[layout](case[name])
    got = call(padfree, **case, causal=True)
    for name in plain:
        assert_same_bits(got[name], plain[name], name)


REFUSED = {
    "float32": ({"q": torch.float32}, {}, "q must be bfloat16 or float16 on cuda, got float32"),
    "wide": ({"dim": 264}, {}, "head_dim must be 1 to 256 on cuda, got 264"),
    "dropout": ({}, {"dropout_p": 0.5}, "dropout_p must be 0.0 on cuda, where it is not built yet, got 0.5"),
    "gradient": ({"grad": True}, {}, "q, k and v must not require gradients on cuda, where the backward is not built"),
    "used": (
        {},
        {"seqused_k": torch.tensor([2], dtype=torch.int32)},
        "seqused_k must be None on cuda, where it is not",
    ),
    "pages": (
        {"paged": True},
        {"block_table": torch.zeros(1, 1, dtype=torch.int32)},
        "block_table must be None on cuda, where it is not built yet, got Tensor",
    ),
}


@pytest.mark.skipif(DEVICES == ["cpu"], reason="what the CPU kernels take, and the CUDA ones do not take yet")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused_by_name(padfree, device, name):
    how, options, text = REFUSED[name]
    dim, dtype = how.get("dim", 16), how.get("q", torch.bfloat16)
    case = forward_only(inputs([4], [4], dims=(dim, dim), dtype=dtype, device=device, packed=True))
    q, k, v, cu_q, cu_k = case.values()
    if how.get("paged"):
        k, v = k[None], v[None]
    q.requires_grad_(how.get("grad", False))
    options = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    with pytest.raises(NotImplementedError, match=f"attention: {text}"):
        padfree.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 4, 4, **options)


@pytest.mark.skipif(DEVICES == ["cpu"], reason="what the CPU kernels take, and the CUDA ones do not take yet")
def test_masks_and_caches_are_not_built(padfree, device):
    q = randn(1, 4, 2, 16, dtype=torch.bfloat16, device=device)
    with pytest.raises(NotImplementedError, match="attention: mask must be None on cuda"):
        padfree.attention_with_mask(q, q, q, torch.ones(1, 1, 4, 4, dtype=torch.bool, device=device))
    with pytest.raises(NotImplementedError, match="flash_attn_with_kvcache: no kernel on cuda yet"):
        padfree.flash_attn_with_kvcache(q, q, q)
