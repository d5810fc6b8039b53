"""The selective scan against the float64 oracle, forward and backward, dense and packed."""

import pytest
import torch
from cases import DTYPES, LAYOUTS, cu_seqlens, dtype_id, embed_in_nan, randn
from scan_case import GRADIENTS, call, check, forward_only, inputs, numbers, only, oracle
from tolerance import assert_close, assert_same_bits

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)

# Below, at and past a square that is transposed (4, 8), and a chunk (64).
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_chunk_edge(padfree, device, length):
    check(padfree, inputs((2, 9, length), device=device))


@pytest.mark.parametrize("length", [255, 256, 257])
def test_longer_than_many_chunks(padfree, device, length):
    check(padfree, inputs((1, 5, length), states=3, device=device))


@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 50])
def test_every_lane_group_edge(padfree, device, channels):
    check(padfree, inputs((2, channels, 11), device=device))


@pytest.mark.parametrize("states", [1, 2, 3, 4, 8, 16, 17, 64])
def test_numbers_of_states(padfree, device, states):
    check(padfree, inputs((1, 20, 35), states, device=device))


@ALL_DTYPES
def test_dtypes(padfree, device, dtype):
    got = check(padfree, inputs(dtype=dtype, device=device))
    assert got["out"].dtype == dtype
    assert got["last_state"].dtype == torch.float32


def test_every_tensor_may_have_its_own_dtype(padfree, device):
    case = inputs(device=device)
    mixed = {"u": torch.bfloat16, "delta": torch.float16, "A": torch.float32, "B": torch.float16, "C": torch.bfloat16,
             "D": torch.bfloat16, "z": torch.float32, "delta_bias": torch.float16}  # fmt: skip
    case.update({name: case[name].to(dtype) for name, dtype in mixed.items()})
    case["dout"] = case["dout"].bfloat16()
    got = check(padfree, case)
    for name, dtype in mixed.items():
        assert got["d" + name].dtype == dtype, name


@pytest.mark.parametrize("groups", [2, 3, 24])
def test_groups(padfree, device, groups):
    check(padfree, inputs((2, 24, 35), groups=groups, device=device))


def test_one_group_with_a_dimension_of_its_own(padfree, device):
    case = inputs(device=device)
    wanted = call(padfree, **case)
    got = call(padfree, **{**case, "B": case["B"][:, None], "C": case["C"][:, None]})
    for name in wanted:
        assert_same_bits(got[name].reshape(wanted[name].shape), wanted[name], name)


@pytest.mark.parametrize("constant", ["B", "C", "BC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_constant_matrices(padfree, device, constant, groups):
    case = inputs((2, 20, 40), groups=groups, device=device)
    for name in constant:
        case[name] = randn(20, 5, seed=20)
    check(padfree, case)


@pytest.mark.parametrize("absent", [("D",), ("z",), ("delta_bias",), ("initial_states",), ("dlast_state",),
                                    ("D", "z", "delta_bias", "initial_states", "dlast_state")], ids=str)  # fmt: skip
@pytest.mark.parametrize("softplus", [False, True])
def test_optional_arguments(padfree, device, absent, softplus):
    case = only(inputs(device=device), *absent)
    if not softplus:  # steps that are not negative: states do not grow
        case.update({n: case[n].abs() / 10 for n in ("delta", "delta_bias") if n in case})
    check(padfree, {**case, "delta_softplus": softplus})


def test_no_last_state_unless_asked_for(padfree, device):
    case = forward_only(inputs(device=device))
    out = padfree.selective_scan_fn(**case)
    assert_same_bits(out, call(padfree, **case)["out"], "out")


def test_only_the_last_state_is_used(padfree, device):
    case = inputs(device=device)
    zero = {**case, "dout": torch.zeros_like(case["dout"])}
    wanted = call(padfree, **zero)
    leaves = {n: case[n].clone().requires_grad_() for n in GRADIENTS}
    _, last_state = padfree.selective_scan_fn(**{**forward_only(case), **leaves}, return_last_state=True)
    last_state.backward(case["dlast_state"])
    for name, leaf in leaves.items():
        assert_same_bits(leaf.grad, wanted["d" + name], "d" + name)


@pytest.mark.parametrize("value", [-40.0, -300.0, -1e30, float("-inf")])
def test_very_negative_exponents(padfree, device, value):
    """States that are forgotten at once: decay and its gradient are 0, everything else as exact as ever."""
    case = inputs(device=device)
    case["A"][3] = value
    case["A"][:, 2] = value
    if value == float("-inf"):  # its gradient is no number: forward only
        case = forward_only(case)
        got, wanted = call(padfree, **case), call(padfree, **{**case, "A": case["A"].clamp_min(-1e30)})
        for name, x in wanted.items():
            assert_same_bits(got[name], x, name)
        return
    got = check(padfree, case)
    assert all(x.isfinite().all() for x in got.values())


def test_large_steps(padfree, device):
    case = inputs(device=device)
    case["delta"] = case["delta"] * 50
    check(padfree, case)


def test_growing_states(padfree, device):
    """A is any number: where it is positive states grow, and errors with them."""
    case = inputs((1, 17, 40), device=device)
    check(padfree, {**case, "A": -case["A"] / 10})
    case["A"][:, 0], case["A"][:, 1] = 0.3, -1e4
    check(padfree, case)


def test_negative_steps(padfree, device):
    case = {**inputs((1, 17, 20), device=device), "delta_softplus": False}
    check(padfree, {**case, **{n: case[n] / 10 for n in ("delta", "delta_bias")}})


@ALL_DTYPES
def test_packed_with_padding(padfree, device, dtype):
    lengths = [1, 70, 2, 55, 3, 40]
    got = check(padfree, inputs((1, 20, 0), dtype=dtype, device=device, lengths=lengths, padding=5))
    for name in ("out", "du", "ddelta", "dz", "dB", "dC"):
        assert torch.count_nonzero(got[name][..., sum(lengths) :]) == 0, name


def test_batch_rows_with_several_sequences_and_padding_between(padfree, device):
    case = inputs((2, 20, 40), device=device, rows=6)
    index = torch.full((2, 40), -1, dtype=torch.int32)
    index[0, 3:10], index[0, 10:33], index[0, 34:] = 4, 0, 2
    index[1, :32], index[1, 32:] = 5, 1
    got = check(padfree, {**case, "seq_idx": index.to(device)})
    assert_same_bits(got["last_state"][3], case["initial_states"][3], "the state of a sequence without tokens")
    assert_same_bits(got["dinitial_states"][3], case["dlast_state"][3], "its gradient")


def test_cu_seqlens_with_empty_sequences_and_slack(padfree, device):
    lengths = [0, 40, 1, 0, 32, 3, 0]
    case = inputs((1, 20, 0), device=device, lengths=lengths, padding=4)
    for dtype in (torch.int32, torch.int64):
        check(padfree, only(case, "seq_idx"), cu_seqlens=cu_seqlens(lengths, dtype, device))
    wanted = call(padfree, **case)
    every_second = torch.stack([cu_seqlens(lengths, device=device)] * 2, -1).flatten()[::2]
    got = call(padfree, **only(case, "seq_idx"), cu_seqlens=every_second)
    for name, x in wanted.items():
        assert_same_bits(got[name], x, name)


def test_cu_seqlens_of_no_sequence(padfree, device):
    case = only(inputs((1, 8, 5), device=device, rows=1), "initial_states", "dout", "dlast_state")
    got = call(padfree, **case, cu_seqlens=cu_seqlens([], device=device))
    assert torch.count_nonzero(got["out"]) == 0
    assert got["last_state"].shape == (0, 8, 5)


def test_numbers_may_repeat_where_no_state_is_passed(padfree, device):
    case = only(inputs((1, 8, 20), device=device), "initial_states", "dlast_state")
    index = torch.tensor([[7] * 5 + [3] * 5 + [7] * 6 + [3] * 4], dtype=torch.int32, device=device)
    out = padfree.selective_scan_fn(**forward_only(case), seq_idx=index)
    apart = padfree.selective_scan_fn(**forward_only(case), seq_idx=numbers([5, 5, 6, 4], device=device))
    assert_same_bits(out, apart, "out")


def test_last_states_are_as_many_as_the_numbers(padfree, device):
    case = only(inputs((1, 8, 10), device=device), "initial_states", "dout", "dlast_state")
    index = torch.tensor([[2] * 4 + [0] * 6], dtype=torch.int32, device=device)
    _, last_state = padfree.selective_scan_fn(**case, seq_idx=index, return_last_state=True)
    assert last_state.shape == (3, 8, 5)
    assert torch.count_nonzero(last_state[1]) == 0


@pytest.mark.parametrize("shape", [(0, 8, 5), (2, 8, 0), (0, 8, 0), (2, 0, 5)], ids=str)
def test_without_any_token_or_channel(padfree, device, shape):
    case = inputs((2, *shape[1:]), device=device)
    check(
        padfree, {n: x if n in ("A", "D", "delta_bias", "delta_softplus") else x[: shape[0]] for n, x in case.items()}
    )


@ALL_DTYPES
def test_a_packed_sequence_has_the_bits_of_the_call_alone(padfree, device, dtype):
    lengths = [40, 1, 97, 128]
    case = inputs((1, 24, 0), dtype=dtype, device=device, lengths=lengths)
    packed = call(padfree, **case)
    begin = 0
    tokens = ("u", "delta", "B", "C", "z", "dout")
    for i, length in enumerate(lengths):
        span = slice(begin, begin + length)
        own = {n: x[..., span] if n in tokens else x for n, x in only(case, "seq_idx").items()}
        alone = call(padfree, **{**own, **{n: case[n][i : i + 1] for n in ("initial_states", "dlast_state")}})
        for name in ("out", "du", "ddelta", "dB", "dC", "dz"):
            assert_same_bits(packed[name][..., span], alone[name], f"{name} of sequence {i}")
        for name in ("last_state", "dinitial_states"):
            assert_same_bits(packed[name][i], alone[name][0], f"{name} of sequence {i}")
        begin += length


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_poison_stays_in_its_sequence(padfree, device, poison, at):
    lengths = [35, 60, 9]
    case = inputs((1, 20, 0), dtype=torch.bfloat16, device=device, lengths=lengths)
    clean = call(padfree, **case)
    begin = sum(lengths[:at])
    inside = slice(begin, begin + lengths[at])
    for name in ("u", "delta", "B", "C", "z", "dout"):
        case[name][..., inside] = poison
    for name in ("initial_states", "dlast_state"):
        case[name][at] = poison
    dirty = call(padfree, **case)
    others = torch.ones(sum(lengths), dtype=torch.bool)
    others[inside] = False
    for name in ("out", "du", "ddelta", "dB", "dC", "dz"):
        assert_same_bits(dirty[name][..., others], clean[name][..., others], name)
    rows = [i for i in range(3) if i != at]
    for name in ("last_state", "dinitial_states"):
        assert_same_bits(dirty[name][rows], clean[name][rows], name)


@pytest.mark.parametrize("name", ["delta", "A"])
def test_a_nan_does_not_hide_exponents_out_of_range(padfree, device, name):
    """The range of a tile is looked at once: steps before the NaN, in its lanes, are so large that decays vanish."""
    case = forward_only(inputs(shape=(1, 32, 60), device=device))
    case["delta"][..., 3] = 400.0
    clean = call(padfree, **case)["out"]
    case[name] = case[name].clone()
    if name == "delta":
        case[name][..., 50] = float("nan")
        assert_same_bits(call(padfree, **case)["out"][..., :50], clean[..., :50])
    else:
        case[name][:4] = float("nan")
        assert_same_bits(call(padfree, **case)["out"][:, 4:], clean[:, 4:])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_padding_is_not_read(padfree, device, poison):
    case = inputs((1, 20, 0), device=device, lengths=[30, 11], padding=6)
    clean = call(padfree, **case)
    for name in ("u", "delta", "B", "C", "z", "dout"):
        case[name][..., 41:] = poison
    for name, x in call(padfree, **case).items():
        assert_same_bits(x, clean[name], name)


@pytest.mark.parametrize("pieces", [[64, 32, 1], [1, 1, 2, 5, 20, 68], [50, 47]], ids=str)
def test_chained_calls_have_the_bits_of_one(padfree, device, pieces):
    case = forward_only(inputs((2, 20, 97), device=device))
    one = call(padfree, **case)
    state, outs, begin = case["initial_states"], [], 0
    for length in pieces:
        span = slice(begin, begin + length)
        part = {n: case[n][..., span] for n in ("u", "delta", "B", "C", "z")}
        got = call(padfree, **{**case, **part, "initial_states": state})
        outs.append(got["out"])
        state, begin = got["last_state"], begin + length
    assert_same_bits(torch.cat(outs, -1), one["out"], "out")
    assert_same_bits(state, one["last_state"], "last_state")


@pytest.mark.parametrize("layout", [*LAYOUTS, "channel_last"])
@ALL_DTYPES
def test_layouts(padfree, device, layout, dtype):
    lay = LAYOUTS.get(layout, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    case = inputs((2, 37, 45), dtype=dtype, device=device)
    plain = call(padfree, **case)
    laid = {n: lay(x) if isinstance(x, torch.Tensor) and x.dim() == 3 else x for n, x in case.items()}
    for name, x in call(padfree, **laid).items():
        assert_same_bits(x, plain[name], name)


def test_small_tensors_may_be_strided(padfree, device):
    case = inputs(device=device)
    plain = call(padfree, **case)
    laid = {**case, **{n: embed_in_nan(case[n]) for n in ("A", "D", "delta_bias", "initial_states", "dlast_state")}}
    for name, x in call(padfree, **laid).items():
        assert_same_bits(x, plain[name], name)


def test_results_lie_as_the_inputs_do(padfree, device):
    case = inputs((2, 20, 40), device=device)
    last = {n: case[n].transpose(1, 2).contiguous().transpose(1, 2) for n in ("u", "delta", "z")}
    for tensors, stride in ((case, 40), (last, 1)):
        got = call(padfree, **{**case, **tensors})
        for name in ("out", "du", "ddelta", "dz"):
            assert got[name].stride(1) == stride, name


def test_inputs_stay_as_they_were(padfree, device):
    case = inputs(device=device)
    before = {n: x.clone() for n, x in case.items() if isinstance(x, torch.Tensor)}
    call(padfree, **case)
    for name, x in before.items():
        assert_same_bits(case[name], x, name)


def test_twenty_runs_give_the_same_bits(padfree, device, threads):
    case = inputs((1, 50, 0), device=device, lengths=[40, 3, 1, 33])
    first = call(padfree, **case)
    for _ in range(19):
        for name, x in call(padfree, **case).items():
            assert_same_bits(x, first[name], name)


@pytest.mark.parametrize("lengths", [[70], [5, 40, 3, 1, 1, 33]], ids=str)
@pytest.mark.parametrize("channels", [16, 600])
@ALL_DTYPES
def test_threads_do_not_change_a_bit(padfree, device, lengths, channels, dtype):
    case = inputs((1, channels, 0), dtype=dtype, device=device, lengths=lengths)
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


def test_more_channels_than_a_block(padfree, device):
    """From 512 channels on a task walks several lane groups, and the last block is shorter."""
    check(padfree, inputs((1, 1100, 3), states=2, device=device))
    check(padfree, inputs((1, 1100, 3), states=2, groups=2, device=device))


def test_sums_over_tokens_are_those_of_the_samples(padfree, device):
    lengths, begin, total = [40, 1, 30], 0, {}
    case = inputs((1, 24, 0), device=device, lengths=lengths)
    for i, length in enumerate(lengths):
        own = {n: x[..., begin : begin + length] if n in ("u", "delta", "B", "C", "z", "dout") else x
               for n, x in only(case, "seq_idx").items()}  # fmt: skip
        own |= {n: case[n][i : i + 1] for n in ("initial_states", "dlast_state")}
        wanted = oracle(own)
        for name in ("dA", "dD", "ddelta_bias"):
            value, allowance = total.get(name, (0, 0))
            total[name] = value + wanted[name][0], allowance + wanted[name][1]
        begin += length
    packed = call(padfree, **case)
    for name, wanted in total.items():
        assert_close(packed[name], *wanted, name)
