"""causal_conv1d_fn: values and gradients against the float64 oracle, boundaries, states, layouts, purity, compile."""

import cases
import pytest
import reference
import torch
from cases import channel_last
from conv_case import LAYOUTS, channel_first, check, inputs, numbered, run, seq_idx_of
from tolerance import assert_close, assert_same_bits

FP32, BF16 = torch.float32, torch.bfloat16


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.dtype_id)
@pytest.mark.parametrize(("bias", "activation"), [(True, "silu"), (False, None)])
def test_matches_oracle(padfree, dtype, width, layout, bias, activation):
    for channels in (13, 24, 37):  # less than two vectors of 8 or 16 lanes, and more
        got = check(padfree, *inputs(2, channels, 67, width, dtype=dtype, bias=bias, layout=layout), None, activation)
        assert got["out"].stride() == layout(got["out"]).stride()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seqlen", [1, 2, 3, 4, 63, 64, 65, 127, 129, 257, 1026])
def test_lengths(padfree, seqlen, layout):
    check(padfree, *inputs(1, 9, seqlen, 4, layout=layout))


@pytest.mark.parametrize(
    ("channels", "seqlen", "layout"), [(520, 600, channel_last), (40, 1700, channel_last), (3, 9000, channel_first)]
)
def test_chunks_and_channel_blocks(padfree, channels, seqlen, layout):
    """Sequences that begin, end and lie across where the work is cut."""
    lengths = [255, 1, 1, 254, seqlen - 511]
    args = inputs(1, channels, seqlen, 4, layout=layout)
    check(padfree, *args, seq_idx_of(numbered(*lengths)))
    check(padfree, *args)


def test_swish_is_silu(padfree):
    x, weight, bias, _, _ = inputs(1, 5, 17, 4)
    silu = padfree.causal_conv1d_fn(x, weight, bias, activation="silu")
    assert_same_bits(padfree.causal_conv1d_fn(x, weight, bias, activation="swish"), silu)


def test_argument_order_is_the_original_packages(padfree):
    x, weight, bias, _, _ = inputs(1, 5, 17, 4)
    seq_idx = seq_idx_of(numbered(8, 9))
    by_name = padfree.causal_conv1d_fn(x=x, weight=weight, bias=bias, seq_idx=seq_idx, activation="silu")
    positional = padfree.causal_conv1d_fn(x, weight, bias, seq_idx, None, False, None, "silu")
    assert_same_bits(positional, by_name)


@pytest.mark.parametrize("weight_dtype", cases.DTYPES, ids=cases.dtype_id)
def test_weight_dtype_is_free(padfree, weight_dtype):
    got = check(padfree, *inputs(1, 13, 40, 4, dtype=BF16, weight_dtype=weight_dtype))
    assert got["dweight"].dtype == weight_dtype
    assert got["dbias"].dtype == weight_dtype
    assert got["dx"].dtype == BF16


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_nothing_to_do(padfree, shape):
    x, weight, bias, _, dout = inputs(*shape, 4)
    got = run(padfree, x, weight, bias, None, None, dout)
    assert got["out"].shape == got["dx"].shape == shape
    assert not got["dweight"].any()
    assert not got["dbias"].any()


def test_extreme_values(padfree):
    """silu and its slope stay finite where exp overflows."""
    x = torch.tensor([[[-3e38, -1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30, 3e38]]])
    weight = torch.tensor([[0.0, 1.0]])
    check(padfree, x, weight, None, None, torch.ones_like(x))


# ---- boundaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=cases.dtype_id)
def test_boundaries_and_padding(padfree, dtype, layout):
    """Segments of 1 to 3 tokens, boundaries inside every tap window, padding in front, between and behind."""
    seq_idx = seq_idx_of(
        [(0, 1), (1, 2), (2, 3), (3, 1), (4, 1), (5, 30), (-1, 6), (6, 25)], [(-1, 5), (0, 60), (7, 2), (-3, 2)]
    )
    got = check(padfree, *inputs(2, 13, 69, 4, dtype=dtype, layout=layout), seq_idx)
    padding = (seq_idx < 0)[:, None, :].expand_as(got["out"])
    assert not got["out"][padding].any()
    assert not got["dx"][padding].any()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_padding_is_not_read(padfree, layout):
    x, weight, bias, _, dout = inputs(1, 13, 40, 4, layout=layout)
    seq_idx = seq_idx_of([(0, 9), (-1, 3), (1, 28)])
    clean = run(padfree, x, weight, bias, seq_idx, None, dout)
    x[:, :, 9:12], dout[:, :, 9:12] = float("nan"), float("nan")
    dirty = run(padfree, x, weight, bias, seq_idx, None, dout)
    for name, tensor in clean.items():
        assert_same_bits(dirty[name], tensor, name)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_nothing_but_padding(padfree, layout):
    x, weight, bias, _, dout = inputs(2, 5, 9, 4, layout=layout)
    got = run(padfree, x, weight, bias, torch.full((2, 9), -1, dtype=torch.int32), None, dout)
    assert not any(got[name].any() for name in ("out", "dx", "dweight", "dbias"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=cases.dtype_id)
def test_packed_equals_per_sample_bit_by_bit(padfree, dtype, layout):
    lengths = [1, 2, 3, 64, 1100, 5, 257]
    x, weight, bias, _, dout = inputs(1, 20, sum(lengths), 4, dtype=dtype, layout=layout)
    packed = run(padfree, x, weight, bias, seq_idx_of(numbered(*lengths)), None, dout)
    samples = [
        run(padfree, layout(part), weight, bias, None, None, layout(dpart))
        for part, dpart in zip(x.split(lengths, 2), dout.split(lengths, 2), strict=True)
    ]
    for name in ("out", "dx"):
        assert_same_bits(packed[name], torch.cat([sample[name] for sample in samples], 2), name)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("poison", [float("nan"), 1e4])
@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_poison_stays_in_its_sample(padfree, poisoned, poison, layout):
    """dweight and dbias are sums over samples, so only they may change."""
    lengths = [33, 2, 40]
    x, weight, bias, states, dout = inputs(1, 20, sum(lengths), 4, states=3, layout=layout)
    seq_idx, dfinal = seq_idx_of(numbered(*lengths)), torch.ones_like(states)
    clean = run(padfree, x, weight, bias, seq_idx, states, dout, dfinal)
    span = slice(sum(lengths[:poisoned]), sum(lengths[: poisoned + 1]))
    for tensor in (x, dout):
        tensor[:, :, span] = poison
    dirty = run(padfree, x, weight, bias, seq_idx, states, dout, dfinal)
    elsewhere = torch.ones(sum(lengths), dtype=torch.bool)
    elsewhere[span] = False
    for name in ("out", "dx"):
        assert_same_bits(dirty[name][..., elsewhere], clean[name][..., elsewhere], name)
    others = [i for i in range(3) if i != poisoned]
    for name in ("final_states", "dinitial_states"):
        assert_same_bits(dirty[name][others], clean[name][others], name)


def test_expanded_and_strided_seq_idx(padfree):
    x, weight, bias, _, _ = inputs(2, 5, 12, 4)
    seq_idx = seq_idx_of(numbered(5, 7))
    wanted = padfree.causal_conv1d_fn(x, weight, bias, seq_idx.repeat(2, 1))
    assert_same_bits(padfree.causal_conv1d_fn(x, weight, bias, seq_idx.expand(2, -1)), wanted)
    strided = torch.stack([seq_idx, seq_idx + 9], -1)[..., 0].expand(2, -1)
    assert_same_bits(padfree.causal_conv1d_fn(x, weight, bias, strided), wanted)


# ---- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=cases.dtype_id)
@pytest.mark.parametrize("seqlen", [1, 2, 3, 20])
@pytest.mark.parametrize("width", [2, 4])
def test_states(padfree, width, seqlen, dtype, layout):
    x, weight, bias, states, dout = inputs(2, 13, seqlen, width, dtype=dtype, states=2, layout=layout)
    check(padfree, x, weight, bias, states, dout, dfinal=cases.randn(*states.shape, dtype=dtype, seed=5))
    check(padfree, x, weight, bias, None, dout, dfinal=cases.randn(*states.shape, dtype=dtype, seed=5))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("given", [True, False], ids=["initial", "zero"])
def test_states_packed(padfree, given, layout):
    """Numbers out of order and with a gap: row 2 belongs to no position and keeps its initial state."""
    seq_idx = seq_idx_of([(4, 1), (0, 2), (-1, 3), (1, 30)], [(3, 3), (5, 33)])
    x, weight, bias, states, dout = inputs(2, 13, 36, 4, states=6, layout=layout)
    states, dfinal = states if given else None, cases.randn(6, 13, 3, seed=5)
    got = check(padfree, x, weight, bias, states, dout, seq_idx, dfinal=dfinal)
    kept = states[2] if given else torch.zeros(13, 3)
    assert_same_bits(got["final_states"][2], kept)


def test_states_without_positions(padfree):
    x, weight, bias, states, _ = inputs(2, 5, 0, 4, states=2)
    _, final = padfree.causal_conv1d_fn(x, weight, bias, None, states, True)
    assert_same_bits(final, states)
    empty = torch.zeros(2, 0, dtype=torch.int32)
    _, final = padfree.causal_conv1d_fn(x, weight, bias, empty, states, True)
    assert_same_bits(final, states)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=cases.dtype_id)
def test_chunked_calls_equal_one_call(padfree, dtype, layout):
    lengths = [1, 1, 2, 5, 20]
    x, weight, bias, states, _ = inputs(2, 13, sum(lengths), 4, dtype=dtype, states=2, layout=layout)
    whole, final = padfree.causal_conv1d_fn(x, weight, bias, None, states, True, activation="silu")
    parts = []
    for part in x.split(lengths, 2):
        out, states = padfree.causal_conv1d_fn(part, weight, bias, None, states, True, activation="silu")
        parts.append(out)
    assert_same_bits(torch.cat(parts, 2), whole)
    assert_same_bits(states, final)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_number_without_a_row_of_states_is_nan_on_the_device(ops, device_values, layout):
    """Nobody can refuse it there: what its row would have been read for is NaN, all else is as it would be."""
    x, weight, bias, states, dout = inputs(1, 13, 20, 4, states=1, layout=layout)
    seq_idx = seq_idx_of([(0, 9), (1, 11)])
    args = (x, weight, bias, seq_idx, states, True)
    out, wanted = ops.causal_conv1d_fwd(*args), ops.causal_conv1d_fwd(x, weight, bias, seq_idx, None, True)
    assert out[:, :, 9:12].isnan().all()
    assert_same_bits(out[:, :, 12:], wanted[:, :, 12:])
    assert not out[:, :, :9].isnan().any()
    assert not ops.causal_conv1d_bwd(dout, *args)[3].isnan().any()


def test_an_index_of_no_state_is_nan_on_the_device(ops, device_values):
    x, state, weight, bias = update_inputs(3, 13, 2, 4, 5)
    before = state.clone()
    indices = torch.tensor([7, 1, -2], dtype=torch.int32)
    out = ops.causal_conv1d_update(x, state, weight, bias, True, None, indices)
    assert out[[0, 2]].isnan().all()
    assert not out[1].isnan().any()
    assert_same_bits(state[[0, 2]], before[[0, 2]])


def test_final_states_out(padfree):
    x, weight, bias, _, _ = inputs(2, 13, 20, 4)
    _, wanted = padfree.causal_conv1d_fn(x, weight, bias, return_final_states=True)
    storage = cases.embed_in_nan(torch.zeros(2, 3, 13)).transpose(1, 2)
    _, final = padfree.causal_conv1d_fn(x, weight, bias, return_final_states=True, final_states_out=storage)
    assert final is storage
    assert_same_bits(storage, wanted)
    assert storage._base.isnan().sum() == storage._base.numel() - storage.numel()


# ---- the decoding step -----------------------------------------------------------------------------------------------


def update_inputs(batch, channels, seqlen, width, length, dtype=FP32, states=None):
    """x, conv_state with NaN around it, weight, bias."""
    x, weight, bias, _, _ = inputs(batch, channels, seqlen, width, dtype=dtype)
    state = cases.embed_in_nan(cases.randn(states or batch, channels, length, dtype=dtype, seed=3))
    return x, state, weight, bias


def check_update(padfree, x, state, weight, bias, activation="silu", **options):
    wanted = reference.causal_conv1d_update(x, state, weight, bias, activation, **options)
    outside = state._base.isnan().sum() if state._base is not None else None
    out = padfree.causal_conv1d_update(x, state, weight, bias, activation, **options)
    assert_close(out, *wanted["out"], "out")
    assert_close(state, *wanted["conv_state"], "conv_state")
    if outside is not None:
        assert state._base.isnan().sum() == outside
    return out


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.dtype_id)
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("seqlen", [1, 2, 6])
def test_update(padfree, seqlen, width, dtype):
    """States of W - 1, W and more times; linear and circular; channels around a vector."""
    for length in (width - 1, width, 9):
        for channels in (5, 8, 13, 24):
            args = update_inputs(3, channels, seqlen, width, length, dtype)
            check_update(padfree, *args)
            lengths = torch.tensor([0, 4, 2**31 - 7], dtype=torch.int32)
            check_update(padfree, *args, activation=None, cache_seqlens=lengths)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.dtype_id)
def test_update_of_a_models_cache(padfree, dtype):
    """What transformers hands over: a dense (B, D, 4) state and a transposed (B, 1, D)."""
    _, _, weight, bias = update_inputs(1, 9001, 1, 4, 4, dtype)
    x = cases.randn(2, 1, 9001, dtype=dtype).transpose(1, 2)
    out = check_update(padfree, x, cases.randn(2, 9001, 4, dtype=dtype, seed=3), weight, bias)
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.dtype_id)
def test_update_of_one_time_with_strides_changes_no_bit(padfree, dtype):
    """Dense arguments go through a loop of their own; here each of them lies apart in turn, among NaN."""
    dense = (
        cases.randn(2, 21, 1, dtype=dtype),
        *(cases.randn(*shape, dtype=dtype, seed=3) for shape in ((2, 21, 4), (21, 4), (21,))),
    )
    wanted_state = dense[1].clone()
    wanted = padfree.causal_conv1d_update(dense[0], wanted_state, *dense[2:], "silu")
    for i in range(len(dense)):
        given = [tensor.clone() for tensor in dense]
        given[i] = given[i].repeat_interleave(2, -1)[..., ::2]
        given[i]._base[..., 1::2] = float("nan")
        assert_same_bits(padfree.causal_conv1d_update(*given, "silu"), wanted)
        assert_same_bits(given[1], wanted_state)
    one = dense[3][:1].expand(21)
    wanted = padfree.causal_conv1d_update(dense[0], dense[1].clone(), dense[2], one.contiguous(), "silu")
    assert_same_bits(padfree.causal_conv1d_update(dense[0], dense[1].clone(), dense[2], one, "silu"), wanted)


def test_update_without_a_time_dimension(padfree):
    x, state, weight, bias = update_inputs(2, 13, 1, 4, 4)
    other = state.clone()
    out = padfree.causal_conv1d_update(x[:, :, 0], state, weight, bias, "silu")
    assert out.shape == (2, 13)
    assert_same_bits(out, padfree.causal_conv1d_update(x, other, weight, bias, "silu")[:, :, 0])
    assert_same_bits(state, other)


@pytest.mark.parametrize("circular", [False, True])
def test_update_conv_state_indices(padfree, circular):
    """-1 gives 0 and writes nothing; the states of no row stay as they are."""
    x, state, weight, bias = update_inputs(4, 13, 2, 4, 5, states=7)
    indices = torch.tensor([5, -1, 0, 3], dtype=torch.int32)
    lengths = torch.tensor([3, 9, 0, 7], dtype=torch.int32) if circular else None
    before = state.clone()
    out = check_update(padfree, x, state, weight, bias, cache_seqlens=lengths, conv_state_indices=indices)
    assert not out[1].any()
    assert_same_bits(state[[1, 2, 4, 6]], before[[1, 2, 4, 6]])


def test_update_takes_strided_integers(padfree):
    x, state, weight, bias = update_inputs(2, 13, 2, 4, 5, states=3)
    indices, lengths = (torch.tensor(rows, dtype=torch.int32)[::2] for rows in ([2, 99, 1, 99], [3, -9, 7, -9]))
    check_update(padfree, x, state, weight, bias, cache_seqlens=lengths, conv_state_indices=indices)


@pytest.mark.parametrize("weight_dtype", cases.DTYPES, ids=cases.dtype_id)
def test_update_weight_dtype_is_free(padfree, weight_dtype):
    x, state, weight, bias = update_inputs(2, 13, 1, 4, 4, BF16)
    check_update(padfree, x, state, weight.to(weight_dtype), bias.to(weight_dtype))
    check_update(padfree, x, state, weight.to(weight_dtype), bias.float())


@pytest.mark.parametrize("layout", cases.LAYOUTS.values(), ids=cases.LAYOUTS)
def test_update_layout_changes_no_bit(padfree, layout):
    x, state, weight, bias = update_inputs(2, 13, 3, 4, 4)
    other = layout(state)
    wanted = padfree.causal_conv1d_update(x, state, weight, bias, "silu")
    assert_same_bits(padfree.causal_conv1d_update(layout(x), other, layout(weight[None])[0], bias, "silu"), wanted)
    assert_same_bits(other, state)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=cases.dtype_id)
def test_updates_continue_a_prefill_bit_by_bit(padfree, dtype, threads):
    x, weight, bias, _, _ = inputs(2, 24, 30, 4, dtype=dtype, layout=channel_last)
    wanted = padfree.causal_conv1d_fn(x, weight, bias, activation="silu")
    _, state = padfree.causal_conv1d_fn(x[:, :, :20], weight, bias, return_final_states=True)
    circle = torch.zeros(2, 24, 6, dtype=dtype)
    circle[:, :, [17 % 6, 18 % 6, 19 % 6]] = state
    lengths = torch.full((2,), 20, dtype=torch.int32)
    for t in range(20, 30):
        step = x[:, :, t : t + 1]
        assert_same_bits(padfree.causal_conv1d_update(step, state, weight, bias, "silu"), wanted[:, :, t : t + 1])
        out = padfree.causal_conv1d_update(step, circle, weight, bias, "silu", lengths)
        assert_same_bits(out, wanted[:, :, t : t + 1])
        lengths += 1


def test_update_of_many_rows_on_threads(padfree):
    """More rows and channels than one task takes."""
    for batch, channels in ((1000, 24), (3, 20000)):
        x, state, weight, bias = update_inputs(batch, channels, 1, 4, 4)
        other = state.clone()
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            wanted = padfree.causal_conv1d_update(x, state, weight, bias, "silu")
            torch.set_num_threads(2)
            assert_same_bits(padfree.causal_conv1d_update(x, other, weight, bias, "silu"), wanted)
        finally:
            torch.set_num_threads(before)
        assert_same_bits(other, state)


def test_update_poison_stays_in_its_row(padfree):
    x, state, weight, bias = update_inputs(3, 13, 2, 4, 4)
    dirty_x, dirty_state = x.clone(), state.clone()
    dirty_x[1], dirty_state[1] = float("nan"), float("nan")
    wanted = padfree.causal_conv1d_update(x, state, weight, bias, "silu")
    got = padfree.causal_conv1d_update(dirty_x, dirty_state, weight, bias, "silu")
    assert_same_bits(got[[0, 2]], wanted[[0, 2]])
    assert_same_bits(dirty_state[[0, 2]], state[[0, 2]])


def test_update_of_nothing(padfree):
    x, state, weight, bias = update_inputs(2, 5, 0, 4, 4)
    before = state.clone()
    assert padfree.causal_conv1d_update(x, state, weight, bias).shape == (2, 5, 0)
    assert_same_bits(state, before)


def test_varlen_states(padfree):
    lengths = [5, 0, 1, 9, 3]
    x = cases.randn(20, 13).requires_grad_()
    states = padfree.causal_conv1d_varlen_states(x, cases.cu_seqlens(lengths), 4)
    rows = [torch.cat([torch.zeros(4, 13), part])[-4:].T for part in x[:18].split(lengths)]
    wanted = torch.stack(rows)
    assert_same_bits(states, wanted)
    dstates = cases.randn(5, 13, 4, seed=1)
    assert_same_bits(*(torch.autograd.grad(t, x, dstates)[0] for t in (states, wanted)))
    assert_same_bits(padfree.causal_conv1d_varlen_states(x, cases.cu_seqlens(lengths, torch.int64), 4), wanted)
    assert not padfree.causal_conv1d_varlen_states(x[:0], torch.zeros(3, dtype=torch.int32), 4).any()


# ---- layouts and memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", cases.LAYOUTS.values(), ids=cases.LAYOUTS)
@pytest.mark.parametrize("channels", [13, 24, 37])
def test_layout_changes_no_bit(padfree, channels, layout):
    x, weight, bias, states, dout = inputs(2, channels, 70, 4, states=2)
    wanted = run(padfree, x, weight, bias, None, states, dout)
    oracle = reference.causal_conv1d(x, weight, bias, None, states, "silu", dout)
    moved = [layout(x), layout(weight[None])[0], bias, None, layout(states), layout(dout)]
    for last in (False, True):
        if last:
            moved[0], moved[5] = (layout(t.transpose(1, 2)).transpose(1, 2) for t in (x, dout))
        got = run(padfree, *moved)
        for name in ("out", "dx", "dinitial_states"):
            assert_same_bits(got[name], wanted[name], name)
        for name in ("dweight", "dbias"):  # summed along time in another order
            assert_close(got[name], *oracle[name], name)


def test_expanded_inputs(padfree):
    x = cases.randn(1, 1, 40).expand(2, 13, 40)
    weight, dout = cases.randn(1, 4).expand(13, 4), torch.ones(1, 1, 1).expand(2, 13, 40)
    check(padfree, x, weight, torch.ones(1).expand(13), None, dout)
    check(padfree, cases.randn(1, 40, 1).expand(2, 40, 13).transpose(1, 2), weight, None, None, dout)
    check(padfree, cases.randn(2, 13, 1).expand(2, 13, 40), weight, None, None, dout)


def test_offsets_past_32_bits(padfree):
    far = 2**31 + 8
    storage = torch.empty(far + 1000, dtype=BF16)  # untouched pages cost nothing
    _, weight, bias, _, dout = inputs(2, 8, 16, 4, dtype=BF16)
    x = storage.as_strided((2, 8, 16), (far, 16, 1))
    x.copy_(cases.randn(2, 8, 16, dtype=BF16))
    check(padfree, x, weight, bias, None, dout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("out_layout", LAYOUTS.values(), ids=LAYOUTS)
def test_out_argument(padfree, out_layout, layout):
    x, weight, bias, _, _ = inputs(2, 13, 40, 4, layout=layout)
    wanted = padfree.causal_conv1d_fn(x, weight, bias, activation="silu")
    out = out_layout(cases.embed_in_nan(torch.zeros_like(x)))
    assert padfree.causal_conv1d_fn(x, weight, bias, activation="silu", out=out) is out
    assert_same_bits(out, wanted)


# ---- determinism, threads, purity ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_runs_and_threads_give_the_same_bits(padfree, layout, repeats):
    x, weight, bias, states, dout = inputs(2, 200, 700, 4, states=4, layout=layout)
    seq_idx = seq_idx_of([(0, 300), (1, 400)], [(2, 699), (3, 1)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = run(padfree, x, weight, bias, seq_idx, states, dout)
        for threads in [1, 2] * (repeats // 2):
            torch.set_num_threads(threads)
            got = run(padfree, x, weight, bias, seq_idx, states, dout)
            for name, tensor in wanted.items():
                assert_same_bits(got[name], tensor, name)
    finally:
        torch.set_num_threads(before)


def test_deterministic_algorithms_and_inputs_unchanged(padfree):
    args = inputs(1, 13, 40, 4, states=1)
    copies = [t.clone() for t in args]
    torch.use_deterministic_algorithms(True)
    try:
        x, weight, bias, states, dout = args
        run(padfree, x, weight, bias, None, states, dout, torch.ones_like(states))
    finally:
        torch.use_deterministic_algorithms(False)
    for tensor, copy in zip(args, copies, strict=True):
        assert_same_bits(tensor, copy)


# ---- the dispatcher and the compiler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_opcheck(ops, layout):
    x, weight, bias, states, dout = inputs(1, 13, 12, 4, states=2, layout=layout)
    seq_idx = seq_idx_of(numbered(5, 7))
    args = (x, weight, bias, seq_idx, states, True)
    torch.library.opcheck(ops.causal_conv1d_fwd.default, args)
    torch.library.opcheck(ops.causal_conv1d_bwd.default, (dout, *args))
    torch.library.opcheck(ops.causal_conv1d_fwd_out.default, (*args, torch.empty_like(x)))
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(ops.causal_conv1d_fwd.default, (*leaves, seq_idx, states.clone().requires_grad_(), True))
    torch.library.opcheck(ops.causal_conv1d_fwd.default, (*leaves[:2], None, None, None, False))


def test_opcheck_update(ops):
    x, state, weight, bias = update_inputs(2, 13, 2, 4, 5, states=3)
    integers = torch.tensor([2, 0], dtype=torch.int32)
    torch.library.opcheck(ops.causal_conv1d_update.default, (x, state, weight, bias, True, integers, integers))
    two_dimensional = (x[:, :, 0], state[:2], weight, None, False, None, None)
    torch.library.opcheck(ops.causal_conv1d_update.default, two_dimensional)


def test_compiled_update(padfree):
    x, state, weight, bias = update_inputs(2, 13, 1, 4, 4)
    other = state.clone()
    compiled = torch.compile(padfree.causal_conv1d_update, backend="aot_eager", fullgraph=True)
    wanted = padfree.causal_conv1d_update(x, state, weight, bias, "silu")
    assert_same_bits(compiled(x, other, weight, bias, "silu"), wanted)
    assert_same_bits(other, state)


def test_fullgraph_and_dynamic_lengths(padfree):
    from torch._dynamo.testing import CompileCounter

    def step(x, weight, bias, seq_idx, states):
        out, final = padfree.causal_conv1d_fn(x, weight, bias, seq_idx, states, True, activation="silu")
        return out * 2, final

    counter = CompileCounter()
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for first, second in ((7, 9), (12, 30), (5, 41)):
        x, weight, bias, states, _ = inputs(1, 13, first + second, 4, states=2, layout=channel_last)
        seq_idx = seq_idx_of(numbered(first, second))
        x.requires_grad_()
        for got, wanted in zip(compiled(x, weight, bias, seq_idx, states), step(x, weight, bias, seq_idx, states),
                               strict=True):  # fmt: skip
            assert_same_bits(got, wanted)
    assert counter.frame_count == 1


def test_compiled_backward(padfree):
    x, weight, bias, _, dout = inputs(1, 13, 24, 4, layout=channel_last)
    seq_idx = seq_idx_of(numbered(9, 15))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def step(x, weight, bias):
        return padfree.causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu")

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(*leaves), leaves, dout)
    for a, b in zip(got, torch.autograd.grad(step(*leaves), leaves, dout), strict=True):
        assert_same_bits(a, b)


def test_export(padfree):
    class Layer(torch.nn.Module):
        def forward(self, x, weight, bias, seq_idx):
            return padfree.causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu")

    x, weight, bias, _, _ = inputs(1, 13, 24, 4)
    args = (x, weight, bias, seq_idx_of(numbered(9, 15)))
    exported = torch.export.export(Layer(), args)
    assert_same_bits(exported.module()(*args), Layer()(*args))


def test_no_output_aliases_an_input(padfree):
    x, weight, bias, states, _ = inputs(1, 13, 3, 4, states=1)
    for result in padfree.causal_conv1d_fn(x, weight, bias, None, states, True):
        storages = {t.untyped_storage().data_ptr() for t in (x, weight, bias, states)}
        assert result.untyped_storage().data_ptr() not in storages
