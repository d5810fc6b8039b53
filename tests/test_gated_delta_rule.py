"""The gated delta rule and Kimi delta attention against the float64 oracle, forward, backward and step by step."""

import pytest
import torch
from cases import DTYPES, LAYOUTS, cu_seqlens, dtype_id, embed_in_nan, randn
from delta_case import GATES, call, check, forward_only, function_of, inputs, only, oracle
from tolerance import assert_close, assert_same_bits

ALL_GATES = pytest.mark.parametrize("gate", GATES)
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)

# Below, at and past a register tile (6), a vector (8), a panel (16) and a chunk (64); issue lengths 255, 256, 257.
LENGTHS = [1, 2, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257]


@pytest.mark.parametrize("length", LENGTHS)
@ALL_GATES
def test_every_chunk_edge(padfree, device, length, gate):
    check(padfree, inputs([length], gate, dims=(16, 8), device=device))


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (1, 3), (2, 4)], ids=str)
@ALL_DTYPES
@ALL_GATES
def test_key_heads_that_serve_several_value_heads(padfree, device, heads, dtype, gate):
    check(padfree, inputs([70, 70], gate, heads, dtype=dtype, device=device))


@pytest.mark.parametrize("dims", [(1, 1), (5, 3), (8, 40), (24, 8), (33, 16), (16, 65), (59, 17)], ids=str)
@ALL_GATES
def test_head_dims(padfree, device, dims, gate):
    check(padfree, inputs([67], gate, dims=dims, device=device))


@pytest.mark.parametrize("dims", [(128, 128), (96, 192), (256, 130), (70, 256)], ids=str)
@ALL_GATES
def test_wide_head_dims(padfree, device, dims, gate):
    check(padfree, inputs([20], gate, heads=(1, 1), dims=dims, device=device))


@ALL_DTYPES
@ALL_GATES
def test_packed_with_empty_sequences_and_slack(padfree, device, dtype, gate):
    lengths = [0, 70, 1, 0, 64, 3, 0]
    got = check(padfree, inputs(lengths, gate, dtype=dtype, device=device, packed=True, slack=5))
    for name in ("out", "dq", "dk", "dv", "dg", "dbeta"):
        assert torch.count_nonzero(got[name][:, sum(lengths) :]) == 0, name


@ALL_GATES
def test_empty_sequences_keep_their_state(padfree, device, gate):
    case = inputs([0, 5, 0], gate, device=device, packed=True)
    for recurrent in (False, True):
        got = call(padfree, **forward_only(case), recurrent=recurrent)
        for i in (0, 2):
            assert_same_bits(got["final_state"][i], case["initial_state"][i], "final_state")
    got = call(padfree, **case)
    for i in (0, 2):
        assert_same_bits(got["dinitial_state"][i], case["dfinal_state"][i], "dinitial_state")


@ALL_GATES
def test_without_any_token(padfree, device, gate):
    for case in (inputs([0, 0], gate, device=device), inputs([0, 0], gate, device=device, packed=True)):
        check(padfree, case)


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("with_dfinal", [False, True])
@pytest.mark.parametrize("state", [False, True])
@ALL_GATES
def test_optional_arguments(padfree, device, state, with_dfinal, l2norm, gate):
    case = inputs([90], gate, device=device, state=state)
    case = case if l2norm else {**case, "k": case["k"] / 4, "q": case["q"] / 4}  # |k| near 1 keeps the state bounded
    check(padfree, case if with_dfinal else only(case, "dfinal_state"), l2norm=l2norm, scale=0.3)


@ALL_GATES
def test_only_the_final_state_is_used(padfree, device, gate):
    case = inputs([70], gate, device=device)
    zero = {**case, "dout": torch.zeros_like(case["dout"])}
    wanted = call(padfree, **zero)
    leaves = {n: case[n].clone().requires_grad_() for n in ("q", "k", "v", "g", "beta", "initial_state")}
    _, final_state = function_of(padfree, case["g"])(**leaves, output_final_state=True, use_qk_l2norm_in_kernel=True)
    final_state.backward(case["dfinal_state"])
    for name, leaf in leaves.items():
        assert_same_bits(leaf.grad, wanted["d" + name], "d" + name)


@ALL_GATES
def test_no_final_state_unless_asked_for(padfree, device, gate):
    case = inputs([9], gate, device=device)
    for recurrent in (False, True):
        tensors = {n: case[n] for n in ("q", "k", "v", "g", "beta")}
        out, final_state = function_of(padfree, case["g"], recurrent)(**tensors)
        assert final_state is None
        assert out.shape == case["v"].shape


@pytest.mark.parametrize(("length", "dims"), [(1, (128, 128)), (2, (33, 72)), (17, (5, 3)), (66, (16, 24))], ids=str)
@ALL_DTYPES
@ALL_GATES
def test_step_by_step(padfree, device, length, dims, dtype, gate):
    case = inputs([length, length], gate, dims=dims, dtype=dtype, device=device)
    check(padfree, forward_only(case), recurrent=True)


@ALL_GATES
def test_step_by_step_packed_without_a_state(padfree, device, gate):
    case = inputs([3, 0, 1, 5], gate, device=device, packed=True, state=False, slack=2)
    check(padfree, forward_only(case), recurrent=True)


@ALL_GATES
def test_step_in_place(padfree, device, gate):
    case = forward_only(inputs([3, 3], gate, device=device))
    wanted = call(padfree, **case, recurrent=True)
    state = case["initial_state"].clone()
    got = call(padfree, **{**case, "initial_state": state}, recurrent=True, inplace_final_state=True)
    assert got["final_state"].data_ptr() == state.data_ptr()
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


@ALL_GATES
def test_recurrent_form_is_differentiable(padfree, device, gate):
    case = inputs([9], gate, device=device)
    wanted = call(padfree, **case)
    got = call(padfree, **case, recurrent=True)
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


@pytest.mark.parametrize("beta", [1.0, 0.999, 1.5])
@pytest.mark.parametrize("decay", [0.0, -1e-4])
@ALL_GATES
def test_equal_keys_with_beta_near_one(padfree, device, beta, decay, gate):
    """The triangular system is as ill-conditioned as it gets; each token overwrites what the last one wrote."""
    case = inputs([200], gate, device=device)
    case["k"] = (case["k"][:, :1].sign() / 4).expand_as(case["k"]).contiguous()  # of norm 1, exactly
    case["beta"] = torch.full_like(case["beta"], beta)
    case["g"] = decay * torch.rand(case["g"].shape, generator=torch.Generator().manual_seed(0))
    check(padfree, case, l2norm=False)


@pytest.mark.parametrize("value", [-30.0, -1e4, -1e30, float("-inf")])
@ALL_GATES
def test_very_negative_gates(padfree, device, value, gate):
    """A closed gate is a start from nothing; mild gates after it are as exact as ever."""
    case = inputs([150], gate, device=device)
    case["g"][:, [0, 3, 4, 63, 64, 100, 149]] = value
    got = check(padfree, case, {**case, "g": case["g"].clamp_min(-1e4)})
    assert all(x.isfinite().all() for x in got.values())
    if value <= -1e4:
        assert torch.count_nonzero(got["dg"][:, [3, 64, 149]]) == 0
        assert torch.count_nonzero(got["dinitial_state"]) == 0


@ALL_GATES
def test_a_closed_gate_equals_a_boundary(padfree, device, gate):
    case = forward_only(inputs([100, 100], gate, device=device, packed=True, state=False))
    apart = oracle(case)
    case["g"][:, 100] = float("-inf")
    together = call(padfree, **only(case, "cu_seqlens"))
    assert_close(together["out"], *apart["out"], "out")


def test_positive_gates(padfree, device):
    """Not what the rule is for: nothing may overflow, and a chunk loses what sums over growing terms lose, no more.

    Step by step states never hold what later tokens erase, and the recurrence's own allowance is enough.
    """
    case = inputs([70], device=device)
    case["g"] = -case["g"] * 0.1
    check(padfree, case, unrolled=True)
    check(padfree, forward_only(case), recurrent=True)


@ALL_DTYPES
@ALL_GATES
def test_a_packed_sequence_has_the_bits_of_the_call_alone(padfree, device, dtype, gate):
    lengths = [70, 1, 129, 64]
    case = inputs(lengths, gate, dtype=dtype, device=device, packed=True)
    packed = call(padfree, **case)
    begin = 0
    for i, length in enumerate(lengths):
        rows = only(case, "initial_state", "dfinal_state", "cu_seqlens")
        own = {n: x[:, begin : begin + length] for n, x in rows.items()}
        states = {n: case[n][i : i + 1] for n in ("initial_state", "dfinal_state")}
        alone = call(padfree, **own, **states)
        for name, x in alone.items():
            part = packed[name][i : i + 1] if "state" in name else packed[name][:, begin : begin + length]
            assert_same_bits(part, x, f"{name} of sequence {i}")
        begin += length


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("at", [0, 1, 2])
@ALL_GATES
def test_poison_stays_in_its_sequence(padfree, device, poison, at, gate):
    lengths = [67, 130, 9]
    case = inputs(lengths, gate, dtype=torch.bfloat16, device=device, packed=True)
    clean = call(padfree, **case)
    begin = sum(lengths[:at])
    end = begin + lengths[at]
    for name in ("q", "k", "v", "g", "beta", "dout"):
        case[name][:, begin:end] = poison
    for name in ("initial_state", "dfinal_state"):
        case[name][at] = poison
    dirty = call(padfree, **case)
    for name, x in clean.items():
        dim, own = (0, slice(at, at + 1)) if "state" in name else (1, slice(begin, end))
        others = torch.ones(x.shape[dim], dtype=torch.bool)
        others[own] = False
        others = others.nonzero().flatten()
        assert_same_bits(dirty[name].index_select(dim, others), x.index_select(dim, others), name)


@pytest.mark.parametrize("pieces", [[64, 128, 65], [1, 1, 2, 60, 193], [100, 157]], ids=str)
@ALL_GATES
def test_chained_calls_equal_one(padfree, device, pieces, gate):
    case = inputs([257], gate, device=device)
    whole = {"final_state": case["initial_state"]}
    outs, begin = [], 0
    tokens = {n: case[n] for n in ("q", "k", "v", "g", "beta")}
    for length in pieces:
        part = {n: x[:, begin : begin + length] for n, x in tokens.items()}
        got = call(padfree, **part, initial_state=whole["final_state"])
        outs.append(got["out"])
        whole, begin = got, begin + length
    chained = {"out": torch.cat(outs, 1), "final_state": whole["final_state"]}
    if all(length % 64 == 0 for length in pieces[:-1]):
        for name, x in call(padfree, **forward_only(case)).items():
            assert_same_bits(chained[name], x, name)
        return
    for name, wanted in oracle(forward_only(case)).items():
        assert_close(chained[name], *wanted, name)


@pytest.mark.parametrize("layout", LAYOUTS)
@ALL_GATES
def test_layouts(padfree, device, layout, gate):
    case = inputs([70], gate, heads=(2, 4), device=device)
    plain = call(padfree, **case)
    laid = {n: x if n in ("beta", "g") and x.dim() == 3 else LAYOUTS[layout](x) for n, x in case.items()}
    got = call(padfree, **laid)
    for name, x in plain.items():
        assert_same_bits(got[name], x, name)
    step = call(padfree, **forward_only(laid), recurrent=True)
    wanted = call(padfree, **forward_only(case), recurrent=True)
    for name, x in wanted.items():
        assert_same_bits(step[name], x, name)


@ALL_GATES
def test_strided_gates_and_boundaries(padfree, device, gate):
    case = inputs([70, 3], gate, device=device, packed=True)
    plain = call(padfree, **case)
    strided = {n: embed_in_nan(case[n]) for n in ("g", "beta")}
    every_second = torch.tensor([0, 9, 70, 9, 73, 9], dtype=torch.int32)[::2]
    for boundaries in (cu_seqlens([70, 3], torch.int64, device), every_second):
        got = call(padfree, **{**case, **strided, "cu_seqlens": boundaries.to(device)})
        for name, x in plain.items():
            assert_same_bits(got[name], x, name)


@ALL_GATES
def test_inputs_stay_as_they_were(padfree, device, gate):
    case = inputs([70], gate, device=device)
    before = {n: x.clone() for n, x in case.items()}
    call(padfree, **case)
    call(padfree, **forward_only(case), recurrent=True)
    for name, x in before.items():
        assert_same_bits(case[name], x, name)


@ALL_DTYPES
@ALL_GATES
def test_gates_and_states_of_other_dtypes(padfree, device, dtype, gate):
    """g, beta and the initial state come in any dtype and are used as float32."""
    case = inputs([20], gate, device=device)
    low = {n: case[n].to(dtype) for n in ("g", "beta", "initial_state")}
    got = call(padfree, **{**case, **low})
    wanted = call(padfree, **{**case, **{n: x.float() for n, x in low.items()}})
    assert got["final_state"].dtype == torch.float32
    for name, x in wanted.items():
        assert_same_bits(got[name], x.to(dtype) if name in ("dg", "dbeta", "dinitial_state") else x, name)


@ALL_GATES
def test_twenty_runs_give_the_same_bits(padfree, device, threads, gate):
    case = inputs([150, 3, 70, 0, 65], gate, heads=(2, 4), device=device, packed=True)
    first = call(padfree, **case)
    for _ in range(19):
        again = call(padfree, **case)
        for name, x in first.items():
            assert_same_bits(again[name], x, name)


@pytest.mark.parametrize("heads", [(1, 1), (1, 2), (2, 4)], ids=str)
@ALL_DTYPES
@ALL_GATES
def test_threads_do_not_change_a_bit(padfree, device, heads, dtype, gate):
    """One long sequence of few heads is cut along heads and value columns; more threads cut it finer."""
    case = inputs([200], gate, heads, (32, 128), dtype, device)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append({**call(padfree, **case), **call(padfree, **forward_only(case))})
            results[-1]["step"] = call(padfree, **forward_only(case), recurrent=True)["out"]
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name, x in results[0].items():
            assert_same_bits(other[name], x, name)


@ALL_GATES
def test_value_first_states(padfree, device, gate):
    case = forward_only(inputs([20], gate, device=device))
    flipped = {**case, "initial_state": case["initial_state"].transpose(-1, -2).contiguous()}
    for recurrent in (False, True):
        wanted = call(padfree, **case, recurrent=recurrent)
        got = call(padfree, **flipped, state_v_first=True, recurrent=recurrent)
        assert_same_bits(got["final_state"].transpose(-1, -2), wanted["final_state"], "final_state")


@pytest.mark.parametrize("neg_eigval", [False, True])
@ALL_GATES
def test_activations_inside(padfree, device, neg_eigval, gate):
    case = inputs([20], gate, device=device)
    raw = {**case, "g": randn(*case["g"].shape, seed=11), "beta": randn(*case["beta"].shape, seed=12)}
    A_log, dt_bias = randn(2, seed=13), randn(2 if gate == "head" else 2 * 16, seed=14)
    got = call(
        padfree, **raw, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias,
        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=neg_eigval,
    )  # fmt: skip
    factor, bias = (A_log, dt_bias) if gate == "head" else (A_log[:, None], dt_bias.view(2, 16))
    g = -factor.exp() * torch.nn.functional.softplus(raw["g"] + bias)
    beta = raw["beta"].sigmoid() * (2 if neg_eigval else 1)
    wanted = call(padfree, **{**case, "g": g, "beta": beta})
    assert_same_bits(got["out"], wanted["out"], "out")


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("with_rate", [False, True])
def test_a_gate_with_a_lower_bound(padfree, device, with_rate, recurrent):
    """Kimi's: the logarithm of the decay stays above the bound, and has gradients."""
    case = inputs([20], "channel", device=device)
    raw = {**forward_only(case), "g": randn(*case["g"].shape, seed=11)}
    rate, bias = randn(2, seed=13), randn(2 * 16, seed=14)
    options = {"use_gate_in_kernel": True, "A_log": rate if with_rate else None, "dt_bias": bias, "lower_bound": -4.0}
    safe = {} if recurrent else {"safe_gate": True}
    got = call(padfree, **raw, **options, **safe, recurrent=recurrent)
    factor = rate.exp()[:, None] if with_rate else 1.0
    g = -4.0 * torch.sigmoid(factor * (raw["g"] + bias.view(2, 16)))
    assert_same_bits(got["out"], call(padfree, **{**raw, "g": g}, recurrent=recurrent)["out"], "out")


@ALL_GATES
def test_what_flash_linear_attention_takes_beside(padfree, device, gate):
    """Accepted where no result depends on it, and under its old name."""
    case = forward_only(inputs([20, 13], gate, device=device, packed=True))
    ends = case["cu_seqlens"].to(torch.int64).cpu()
    nothing = {"cp_context": None, "use_graph": False, "max_num_seqs": None, "return_intermediate_states": False}
    for recurrent in (True, False):
        wanted = call(padfree, **case, recurrent=recurrent)
        got = call(
            padfree, **case, **nothing, cu_seqlens_cpu=ends, chunk_size=32, disable_recompute=True, recurrent=recurrent
        )
        assert_same_bits(got["out"], wanted["out"], "out")
    flipped = {**case, "initial_state": case["initial_state"].transpose(-1, -2)}
    got = call(padfree, **flipped, transpose_state_layout=True)
    assert_same_bits(got["final_state"].transpose(-1, -2), wanted["final_state"], "final_state")


def test_recurrent_form_without_gate_and_beta(padfree, device):
    case = forward_only(inputs([5], device=device))
    tensors = {n: case[n] for n in ("q", "k", "v")}
    out, _ = padfree.fused_recurrent_gated_delta_rule(**tensors, use_qk_l2norm_in_kernel=True)
    ones = {"g": torch.zeros_like(case["g"]), "beta": torch.ones_like(case["beta"])}
    assert_same_bits(out, call(padfree, **tensors, **ones, recurrent=True)["out"], "out")
