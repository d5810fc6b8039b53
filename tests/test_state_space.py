"""The state-space scan (Mamba 2) against the float64 oracle, forward and backward, dense and packed."""

import pytest
import torch
from cases import DTYPES, LAYOUTS, cu_seqlens, dtype_id, embed_in_nan, randn
from state_space_case import LEAVES, TOKENS, call, check, forward_only, inputs, only, oracle
from tolerance import FUNCTION_ULPS, assert_close, assert_same_bits, gamma

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)

# Below, at and past a register tile (6), a vector (8), a panel (16) and a chunk (64); issue lengths 255, 256, 257.
LENGTHS = [1, 2, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257]

ROWS = ("out", "dx", "ddt", "dB", "dC", "dz")
"""Results with a row for each token."""


def seq_idx(*rows):
    """int32 (B, L) out of ``(value, count)`` pairs for each row."""
    return torch.tensor([[value for value, count in row for _ in range(count)] for row in rows], dtype=torch.int32)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_chunk_edge(padfree, device, length):
    check(padfree, inputs([length], device=device))


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 1), (4, 2), (12, 1), (20, 2)], ids=str)
@ALL_DTYPES
def test_groups_of_heads(padfree, device, heads, dtype):
    """Up to 8 heads of a group share a task, and their part of dB and dC."""
    check(padfree, inputs([70, 70], heads, (8, 8), dtype, device))


@pytest.mark.parametrize("dims", [(1, 1), (5, 3), (8, 40), (24, 8), (33, 16), (16, 65), (59, 17)], ids=str)
@pytest.mark.parametrize("skip", ["head", "channel"])
def test_widths(padfree, device, dims, skip):
    check(padfree, inputs([67], dims=dims, device=device, gate=True, skip=skip))


@pytest.mark.parametrize("dims", [(64, 128), (128, 64), (256, 130), (70, 256)], ids=str)
def test_wide(padfree, device, dims):
    check(padfree, inputs([20], heads=(1, 1), dims=dims, device=device))


@ALL_DTYPES
def test_packed_with_empty_sequences_and_slack(padfree, device, dtype):
    lengths = [0, 70, 1, 0, 64, 3, 0]
    got = check(padfree, inputs(lengths, dtype=dtype, device=device, packed=True, slack=5, gate=True))
    for name in ROWS:
        assert torch.count_nonzero(got[name][:, sum(lengths) :]) == 0, name


def test_empty_sequences_keep_their_state(padfree, device):
    got = call(padfree, **(case := inputs([0, 5, 0], device=device, packed=True)))
    for i in (0, 2):
        assert_same_bits(got["final_states"][i], case["initial_states"][i], "final_states")
        assert_same_bits(got["dinitial_states"][i], case["dfinal_states"][i], "dinitial_states")


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("lengths", [[0, 0], [0]], ids=str)
def test_without_any_token(padfree, device, packed, lengths):
    check(padfree, inputs(lengths, device=device, packed=packed))


def test_no_sequence_at_all(padfree, device):
    case = inputs([], device=device, packed=True, slack=3)
    got = check(padfree, case)
    assert got["final_states"].shape[0] == 0


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("skip", [None, "head", "channel"])
@pytest.mark.parametrize("with_dfinal", [False, True])
def test_optional_arguments(padfree, device, state, gate, skip, with_dfinal):
    case = inputs([90], device=device, state=state, gate=gate, skip=skip, bias=state)
    check(padfree, case if with_dfinal else only(case, "dfinal_states"))


def test_without_softplus(padfree, device):
    case = inputs([70], device=device, bias=False)
    check(padfree, {**case, "dt_softplus": False, "dt": case["dt"].exp()})


@pytest.mark.parametrize("limits", [(0.2, 1.0), (0.0, 0.5), (0.5, float("inf")), (0.3, 0.3)], ids=str)
@pytest.mark.parametrize("softplus", [False, True])
def test_limits_of_dt(padfree, device, limits, softplus):
    case = {**inputs([70], device=device, bias=False), "dt_softplus": softplus, "dt_limit": limits}
    got = check(padfree, case)
    dt = torch.nn.functional.softplus(case["dt"]) if softplus else case["dt"]
    outside = (dt < limits[0]) | (dt > limits[1])
    assert outside.any()
    assert torch.count_nonzero(got["ddt"][outside]) == 0


def test_dt_at_its_limits_takes_a_gradient(padfree, device):
    case = {**inputs([9], device=device, bias=False), "dt_softplus": False, "dt_limit": (0.25, 1.0)}
    case["dt"] = torch.full_like(case["dt"], 0.25)
    case["dt"][:, ::2] = 1.0
    assert torch.count_nonzero(check(padfree, case)["ddt"]) == case["dt"].numel()


@ALL_DTYPES
def test_seq_idx(padfree, device, dtype):
    """Runs of any value and length; negative ones are padding, before, between and after; a row without any run."""
    index = seq_idx(
        [(-1, 3), (4, 70), (0, 1), (7, 2), (-2, 1), (-1, 2), (7, 64), (-1, 7)],
        [(-5, 150)],
        [(0, 65), (1, 1), (0, 84)],
    )
    case = inputs([150] * 3, dtype=dtype, device=device, gate=True)
    case["seq_idx"] = index.to(device)
    got = check(padfree, case)
    for name in ROWS:
        assert torch.count_nonzero(got[name][index < 0]) == 0, name
    assert_same_bits(got["final_states"][1], case["initial_states"][1], "final_states")


def test_padding_is_not_read(padfree, device):
    index = seq_idx([(-1, 5), (0, 70), (-1, 3), (1, 20), (-3, 2)]).to(device)
    case = {**inputs([100], device=device, gate=True), "seq_idx": index}
    clean = call(padfree, **case)
    dirty = {n: x.masked_fill((index < 0).view(1, -1, *[1] * (x.dim() - 2)), float("nan")) if n in TOKENS else x
             for n, x in case.items()}  # fmt: skip
    for name, x in call(padfree, **dirty).items():
        assert_same_bits(x, clean[name], name)


def test_seq_idx_and_cu_seqlens_say_the_same(padfree, device):
    lengths = [70, 1, 64, 3]
    case = inputs(lengths, device=device, packed=True, state=False)
    wanted = call(padfree, **forward_only(case))["out"]
    index = seq_idx(list(enumerate(lengths))).to(device)
    for boundaries in ({"seq_idx": index}, {"seq_idx": index, "cu_seqlens": case["cu_seqlens"]}):
        got = call(padfree, **{**only(forward_only(case), "cu_seqlens"), **boundaries})
        assert_same_bits(got["out"], wanted, "out")


def test_states_of_rows_and_of_sequences(padfree, device):
    case = forward_only(inputs([70, 5, 3], device=device, packed=True))

    def run(**options):
        return padfree.mamba_chunk_scan_combined(**case, chunk_size=8, **options)

    out, last, every = run(return_final_states=True, return_varlen_states=True)
    assert_same_bits(run(), out, "out")
    assert_same_bits(run(return_varlen_states=True)[1], every, "varlen_states")
    assert_same_bits(run(return_final_states=True)[1], last, "final_states")
    assert_same_bits(last, every[-1:], "final_states")


@pytest.mark.parametrize("chunk_size", [1, 16, 100, 256, 1000])
def test_chunk_size_changes_nothing(padfree, device, chunk_size):
    case = inputs([130], device=device)
    wanted = call(padfree, **case)
    for name, x in call(padfree, **case, chunk_size=chunk_size).items():
        assert_same_bits(x, wanted[name], name)


def test_only_the_final_states_are_used(padfree, device):
    case = inputs([70], device=device)
    wanted = call(padfree, **{**case, "dout": torch.zeros_like(case["dout"])})
    leaves = {n: case[n].clone().requires_grad_() for n in LEAVES if n in case}
    _, final_states = padfree.mamba_chunk_scan_combined(
        **{**forward_only(case), **leaves}, chunk_size=64, return_final_states=True
    )
    gradients = torch.autograd.grad(final_states, list(leaves.values()), case["dfinal_states"])
    for name, gradient in zip(leaves, gradients, strict=True):
        assert_same_bits(gradient, wanted["d" + name], "d" + name)


@pytest.mark.parametrize("value", [30.0, 1e4, 1e30])
def test_very_large_steps(padfree, device, value):
    """A huge step forgets everything before it; mild steps after it are as exact as ever."""
    case = {**inputs([150], device=device, bias=False), "dt_softplus": False, "A": torch.tensor([-1.0, -20.0])}
    case["dt"] = case["dt"].exp()
    case["dt"][:, [0, 3, 4, 63, 64, 100, 149]] = value
    case["x"][:, [0, 3, 4, 63, 64, 100, 149]] /= value  # so that the state stays of one size
    got = check(padfree, case)
    assert all(x.isfinite().all() for x in got.values())
    if value >= 1e4:
        assert torch.count_nonzero(got["dinitial_states"]) == 0


def test_a_large_step_equals_a_boundary(padfree, device):
    case = forward_only(inputs([100, 100], device=device, packed=True, state=False))
    case["x"][:, 100] = 0
    together = only(case, "cu_seqlens")
    together["dt"] = case["dt"].index_fill(1, torch.tensor([100], device=device), 1e6)
    got = call(padfree, **together)
    assert_close(got["out"], *oracle(case)["out"], "out")


def test_growing_states(padfree, device):
    """A above 0 is not what the scan is for (states grow, and errors with them), but it is computed."""
    case = inputs([70], device=device)
    check(padfree, {**case, "A": -0.02 * case["A"]})


@ALL_DTYPES
def test_a_packed_sequence_has_the_bits_of_the_call_alone(padfree, device, dtype):
    lengths = [70, 1, 129, 64]
    case = inputs(lengths, (4, 2), dtype=dtype, device=device, packed=True, gate=True)
    packed = call(padfree, **case)
    begin = 0
    for i, length in enumerate(lengths):
        own = {n: x[:, begin : begin + length] if n in TOKENS else x for n, x in case.items() if n != "cu_seqlens"}
        own |= {n: case[n][i : i + 1] for n in ("initial_states", "dfinal_states")}
        alone = call(padfree, **own)
        for name in (*ROWS, "final_states", "dinitial_states"):
            part = packed[name][i : i + 1] if "states" in name else packed[name][:, begin : begin + length]
            assert_same_bits(part, alone[name], f"{name} of sequence {i}")
        begin += length


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_poison_stays_in_its_sequence(padfree, device, poison, at):
    lengths = [67, 130, 9]
    case = inputs(lengths, dtype=torch.bfloat16, device=device, packed=True, gate=True)
    clean = call(padfree, **case)
    begin = sum(lengths[:at])
    end = begin + lengths[at]
    for name in TOKENS:
        case[name][:, begin:end] = poison
    for name in ("initial_states", "dfinal_states"):
        case[name][at] = poison
    dirty = call(padfree, **case)
    for name in (*ROWS, "final_states", "dinitial_states"):
        dim, own = (0, slice(at, at + 1)) if "states" in name else (1, slice(begin, end))
        others = torch.ones(clean[name].shape[dim], dtype=torch.bool)
        others[own] = False
        others = others.nonzero().flatten()
        assert_same_bits(dirty[name].index_select(dim, others), clean[name].index_select(dim, others), name)


@pytest.mark.parametrize("pieces", [[64, 128, 65], [1, 1, 2, 60, 193], [100, 157]], ids=str)
def test_chained_calls_equal_one(padfree, device, pieces):
    case = forward_only(inputs([257], device=device, gate=True))
    states, outs, begin = case["initial_states"], [], 0
    for length in pieces:
        part = {n: x[:, begin : begin + length] if n in TOKENS else x for n, x in case.items()}
        got = call(padfree, **{**part, "initial_states": states})
        outs.append(got["out"])
        states, begin = got["final_states"], begin + length
    chained = {"out": torch.cat(outs, 1), "final_states": states}
    if all(length % 64 == 0 for length in pieces[:-1]):
        for name, x in call(padfree, **case).items():
            assert_same_bits(chained[name], x, name)
        return
    for name, wanted in oracle(case).items():
        assert_close(chained[name], *wanted, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(padfree, device, layout):
    case = inputs([70], (4, 2), device=device, gate=True, skip="channel")
    plain = call(padfree, **case)
    laid = {n: LAYOUTS[layout](x) if isinstance(x, torch.Tensor) and x.dim() > 2 else x for n, x in case.items()}
    got = call(padfree, **laid)
    for name, x in plain.items():
        assert_same_bits(got[name], x, name)


def test_slices_of_one_projection(padfree, device):
    """As a Mamba 2 layer has them: x, B and C next to each other in a row, dt at the end of another, wider one."""
    case = inputs([70, 70], (4, 2), (8, 16), device=device)
    plain = call(padfree, **case)
    row = torch.cat([case[n].flatten(2) for n in ("x", "B", "C")], -1)
    x, B, C = row.split([32, 32, 32], -1)
    wide = torch.cat([torch.full_like(row, float("nan")), case["dt"]], -1)
    sliced = {
        "x": x.unflatten(-1, (4, 8)), "B": B.unflatten(-1, (2, 16)), "C": C.unflatten(-1, (2, 16)),
        "dt": wide[..., -4:],
    }  # fmt: skip
    for name, tensor in call(padfree, **{**case, **sliced}).items():
        assert_same_bits(tensor, plain[name], name)


def test_strided_parameters_and_boundaries(padfree, device):
    case = inputs([70, 3], device=device, packed=True, skip="channel")
    plain = call(padfree, **case)
    strided = {n: embed_in_nan(case[n]) for n in ("A", "D", "dt_bias", "dt", "initial_states", "dfinal_states")}
    every_second = torch.tensor([0, 9, 70, 9, 73, 9], dtype=torch.int32)[::2]
    for boundaries in (cu_seqlens([70, 3], torch.int64, device), every_second):
        got = call(padfree, **{**case, **strided, "cu_seqlens": boundaries.to(device)})
        for name, x in plain.items():
            assert_same_bits(got[name], x, name)
    index = seq_idx([(0, 70), (1, 3)]).to(device)
    case = {**only(case, "cu_seqlens", "initial_states", "dfinal_states"), "seq_idx": index}
    plain = call(padfree, **case)
    for name, x in call(padfree, **{**case, "seq_idx": embed_in_nan(index)}).items():
        assert_same_bits(x, plain[name], name)


def test_inputs_stay_as_they_were(padfree, device):
    case = inputs([70], device=device, gate=True)
    before = {n: x.clone() for n, x in case.items() if isinstance(x, torch.Tensor)}
    call(padfree, **case)
    for name, x in before.items():
        assert_same_bits(case[name], x, name)


@ALL_DTYPES
def test_steps_and_states_of_other_dtypes(padfree, device, dtype):
    """dt, A, D, dt_bias and the initial states come in any dtype and are used as float32."""
    case = inputs([20], device=device)
    low = {n: case[n].to(dtype) for n in ("dt", "A", "D", "dt_bias", "initial_states")}
    got = call(padfree, **{**case, **low})
    wanted = call(padfree, **{**case, **{n: x.float() for n, x in low.items()}})
    assert got["final_states"].dtype == torch.float32
    for name, x in wanted.items():
        assert_same_bits(got[name], x.to(dtype) if name.removeprefix("d") in low or name == "ddt" else x, name)


def test_twenty_runs_give_the_same_bits(padfree, device, threads):
    case = inputs([150, 3, 70, 0, 65], (4, 2), device=device, packed=True, gate=True)
    first = call(padfree, **case)
    for _ in range(19):
        again = call(padfree, **case)
        for name, x in first.items():
            assert_same_bits(again[name], x, name)


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (12, 1), (4, 2)], ids=str)
@ALL_DTYPES
def test_threads_do_not_change_a_bit(padfree, device, heads, dtype):
    """One long sequence of few heads is cut into tasks of fewer heads where there are more threads."""
    case = inputs([200], heads, (32, 16), dtype, device, gate=True)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(call(padfree, **case))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name, x in results[0].items():
            assert_same_bits(other[name], x, name)


def test_softplus_far_from_zero(padfree, device):
    """dt over nine decades on both sides: y = dt x B C where the state starts from nothing."""
    raw = torch.cat([-torch.logspace(-6, 1.9, 40), torch.logspace(-6, 3, 40)]).view(1, 80, 1)
    ones = torch.ones(1, 80, 1, 1)
    out = padfree.mamba_chunk_scan_combined(
        ones.to(device), raw.to(device), torch.zeros(1, device=device), ones.to(device), ones.to(device), 64,
        dt_softplus=True, seq_idx=torch.arange(80, dtype=torch.int32, device=device)[None],
    )  # fmt: skip
    wanted = torch.nn.functional.softplus(raw.double(), threshold=100)[..., None]
    roundings = FUNCTION_ULPS + raw.double()[..., None].clamp_max(0).abs()  # of e^x the exponent is rounded
    assert_close(out, wanted, wanted * gamma(roundings), "dt")


def test_random_boundaries(padfree, device):
    """seq_idx drawn at random: runs of one to many tokens, numbers that come again, padding anywhere."""
    for seed in range(4):
        changes = randn(2, 140, seed=seed) > 1.2
        index = (changes.cumsum(1) % 5 - 1).to(torch.int32)
        case = inputs([140, 140], (2, 2), (4, 8), device=device, seed=seed, gate=seed % 2 == 0)
        check(padfree, {**case, "seq_idx": index.to(device)})
