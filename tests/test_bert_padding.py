"""unpad_input, pad_input and what they are made of, against loops over rows and tokens; everything here is exact."""

import pytest
import torch
from cases import DTYPES, dtype_id, on_threads, randn
from tolerance import assert_same_bits

MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]],
    "nothing": [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
}
TRAILING = [(), (3,), (2, 4)]


def places(mask):
    """(row, column) of each 1, row after row."""
    return [(row, column) for row, line in enumerate(mask) for column, value in enumerate(line) if value]


def integers(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=dtype_id)
@pytest.mark.parametrize("trailing", TRAILING, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_there_and_back(padfree, kind, trailing, dtype):
    """Padding holds NaN (of integers -1) and is nowhere to be seen."""
    mask = MASKS[kind]
    hidden = torch.full((3, 5, *trailing), -1 if dtype == torch.int64 else float("nan"), dtype=dtype)
    for row, column in places(mask):
        hidden[row, column] = (randn(*trailing, seed=5 * row + column) * 100).to(dtype)
    module = padfree.bert_padding
    tokens, indices, ends, longest, used = module.unpad_input(hidden, torch.tensor(mask))
    assert tokens.shape == (len(places(mask)), *trailing)
    for token, (row, column) in zip(tokens, places(mask), strict=True):
        assert torch.equal(token, hidden[row, column])
    assert torch.equal(indices, torch.tensor([5 * row + column for row, column in places(mask)], dtype=torch.int64))
    lengths = [sum(line) for line in mask]
    assert_same_bits(ends, integers([0, lengths[0], lengths[0] + lengths[1], sum(lengths)]), "cu_seqlens")
    assert_same_bits(used, integers(lengths), "seqused")
    assert longest == max(lengths)
    assert type(longest) is int
    padded = module.pad_input(tokens, indices, 3, 5)
    assert padded.shape == hidden.shape
    for row in range(3):
        for column in range(5):
            wanted = hidden[row, column] if mask[row][column] else torch.zeros(trailing, dtype=dtype)
            assert torch.equal(padded[row, column], wanted)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_masks_of_every_dtype(padfree, dtype):
    hidden, mask = randn(3, 5, 2), torch.tensor(MASKS["holes"])
    wanted = padfree.bert_padding.unpad_input(hidden, mask)
    got = padfree.bert_padding.unpad_input(hidden, mask.to(dtype))
    for one, other in zip(got, wanted, strict=True):
        assert one.equal(other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
def test_no_rows_and_no_tokens(padfree, shape):
    module, mask = padfree.bert_padding, torch.ones(shape, dtype=torch.int64)
    tokens, indices, ends, longest, used = module.unpad_input(torch.ones(*shape, 2), mask, mask)
    assert tokens.shape == (0, 2)
    assert (indices.numel(), longest, used.tolist()) == (0, 0, [0] * shape[0])
    assert ends.tolist() == [0] * (shape[0] + 1)
    assert module.pad_input(tokens, indices, *shape).shape == (*shape, 2)
    tokens, indices, ends, longest = module.unpad_input_for_concatenated_sequences(torch.ones(*shape, 2), mask * 0)
    assert (tokens.numel(), indices.numel(), ends.tolist(), longest) == (0, 0, [0], 0)


def test_unused_tokens_are_kept_and_not_attended_to(padfree):
    """What ``seqused`` is for: the same bits as of the used tokens alone, and nothing at the others."""
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0, 0]])
    unused = torch.tensor([[0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]])
    qkv = randn(3, 7, 3, 2, 16)
    unpad = padfree.bert_padding.unpad_input
    tokens, indices, ends, longest, used = unpad(qkv, mask, unused)
    assert ends.tolist() == [0, 6, 8, 13]
    assert (longest, used.tolist()) == (6, [4, 2, 4])
    assert torch.equal(indices, (mask + unused).flatten().nonzero().flatten())
    attend = padfree.flash_attn_varlen_func
    got = attend(*tokens.unbind(1), ends, ends, longest, longest, causal=True, seqused_q=used, seqused_k=used)
    alone, alone_indices, alone_ends, most, _ = unpad(qkv, mask)
    wanted = attend(*alone.unbind(1), alone_ends, alone_ends, most, most, causal=True)
    pad = padfree.bert_padding.pad_input
    assert_same_bits(pad(got, indices, 3, 7), pad(wanted, alone_indices, 3, 7))


def test_rows_of_several_samples(padfree):
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 0, 2, 0, 0, 0], [6, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    hidden = randn(4, 6, 2)
    tokens, indices, ends, longest = padfree.bert_padding.unpad_input_for_concatenated_sequences(hidden, lengths)
    assert_same_bits(ends, integers([0, 2, 5, 8, 10, 16]), "cu_seqlens")
    assert longest == 6
    assert torch.equal(tokens, torch.cat([hidden[0, :5], hidden[1, :5], hidden[2]]))
    assert torch.equal(indices, torch.tensor([*range(5), *range(6, 11), *range(12, 18)]))
    assert torch.equal(padfree.bert_padding.pad_input(tokens, indices, 4, 6)[:2, 5:], torch.zeros(2, 1, 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients(padfree, dtype):
    """Of a row taken twice the sum; of a row not taken zero; exactly, as numbers of few bits add up exactly."""
    module, indices = padfree.bert_padding, torch.tensor([4, 0, 4, 2, 4])
    whole = randn(6, 3, dtype=dtype).requires_grad_()
    back, rest = torch.arange(15.0).view(5, 3).to(dtype), torch.arange(18.0).view(6, 3).to(dtype)
    summed = torch.zeros(6, 3, dtype=dtype)
    for index, row in zip(indices.tolist(), back, strict=True):
        summed[index] += row
    (got,) = torch.autograd.grad(module.index_first_axis(whole, indices), whole, back)
    assert_same_bits(got, summed, "index_first_axis")
    (got,) = torch.autograd.grad(module.index_first_axis_residual(whole, indices), whole, (back, rest))
    assert_same_bits(got, summed + rest, "index_first_axis_residual")
    values, places = randn(3, 3, dtype=dtype).requires_grad_(), torch.tensor([5, 0, 3])
    (got,) = torch.autograd.grad(module.index_put_first_axis(values, places, 6), values, rest)
    assert_same_bits(got, rest[[5, 0, 3]], "index_put_first_axis")
    hidden = randn(3, 5, 2, dtype=dtype).requires_grad_()
    mask = torch.tensor(MASKS["holes"])
    tokens, indices, *_ = module.unpad_input(hidden, mask)
    padded = module.pad_input(tokens, indices, 3, 5)
    back = randn(3, 5, 2, dtype=dtype, seed=1)
    (got,) = torch.autograd.grad(padded, hidden, back)
    assert_same_bits(got, torch.where(mask[..., None].bool(), back, torch.zeros_like(back)), "there and back")


def test_any_layout_and_int32_indices(padfree):
    module, indices = padfree.bert_padding, torch.tensor([3, 1], dtype=torch.int32)
    hidden = randn(4, 5, 3).transpose(0, 1)
    mask = torch.tensor(MASKS["left"]).repeat(2, 1)[:5, :4]
    assert torch.equal(module.unpad_input(hidden, mask)[0], module.unpad_input(hidden.contiguous(), mask)[0])
    assert torch.equal(module.index_first_axis(hidden, indices), hidden[[3, 1]])
    assert torch.equal(module.index_put_first_axis(hidden[:2], indices, 5)[[3, 1]], hidden[:2])
    row = torch.ones(1, 5).expand(3, 5)
    assert module.unpad_input(row, torch.tensor(MASKS["right"]))[0].tolist() == [1.0] * 9


def test_the_same_bits_on_any_number_of_threads(padfree, repeats):
    indices = torch.randint(0, 700, (5000,), generator=torch.Generator().manual_seed(0))
    whole, back = randn(700, 64).requires_grad_(), randn(5000, 64, seed=1)

    def gradient(threads):
        with on_threads(threads):
            return torch.autograd.grad(padfree.bert_padding.index_first_axis(whole, indices), whole, back)[0]

    wanted = gradient(1)
    for run in range(repeats):
        assert_same_bits(gradient(1 + run % 2), wanted)


def test_fullgraph(padfree):
    """All but what has to count tokens to know its own size."""
    module, indices = padfree.bert_padding, torch.tensor([4, 0, 2])

    def step(x):
        taken, rest = module.index_first_axis_residual(x, indices)
        put = module.index_put_first_axis(module.index_first_axis(taken, torch.tensor([2, 1])), torch.tensor([1, 4]), 6)
        return module.pad_input(put * 2 + rest, torch.arange(6), 2, 3)

    x = randn(6, 3).requires_grad_()
    back = randn(2, 3, 3, seed=1)
    wanted, got = step(x), torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    assert_same_bits(got, wanted)
    assert_same_bits(torch.autograd.grad(got, x, back)[0], torch.autograd.grad(wanted, x, back)[0], "gradient")


HIDDEN = torch.zeros(2, 3, 4)
ONES = torch.ones(2, 3, dtype=torch.int64)
UNPAD_ERRORS = {
    "hidden_type": ([[0.0]], ONES, TypeError, "hidden_states must be a tensor, got list"),
    "hidden_rank": (torch.zeros(3), ONES, ValueError, "hidden_states must have 2 dimensions or more, got 1"),
    "mask_type": (HIDDEN, None, TypeError, "attention_mask must be a tensor, got NoneType"),
    "mask_rank": (HIDDEN, torch.ones(2, 1, 3), ValueError, "attention_mask must have 2 dimensions, got 3"),
    "batch": (HIDDEN, torch.ones(3, 3), ValueError, "attention_mask must have size 2 in dimension 0, got 3"),
    "seqlen": (HIDDEN, torch.ones(2, 4), ValueError, "attention_mask must have size 3 in dimension 1, got 4"),
    "device": (
        HIDDEN,
        torch.ones(2, 3, device="meta"),
        TypeError,
        "attention_mask must be on the device of hidden_states (cpu), got meta",
    ),
    "additive": (HIDDEN, ONES.float() * -1e9, ValueError, "attention_mask must hold 0 and 1, got -1000000000.0"),
    "numbered": (HIDDEN, ONES * 2, ValueError, "attention_mask must hold 0 and 1, got 2"),
}


@pytest.mark.parametrize(("hidden", "mask", "kind", "text"), UNPAD_ERRORS.values(), ids=UNPAD_ERRORS)
def test_unpad_input_errors(padfree, hidden, mask, kind, text):
    with pytest.raises(kind) as error:
        padfree.bert_padding.unpad_input(hidden, mask)
    assert str(error.value) == f"unpad_input: {text}"


@pytest.mark.parametrize(
    ("unused", "text"),
    [
        (torch.ones(2, 4), "unused_mask must have size 3 in dimension 1, got 4"),
        (ONES * 3, "unused_mask must hold 0 and 1, got 3"),
        (torch.tensor([[0, 1, 0], [0, 0, 1]]), "unused_mask must be 0 where attention_mask is 1, got 1"),
        (
            torch.tensor([[0, 0, 1], [1, 0, 0]]),
            "unused_mask must mark tokens behind the used ones of a row, got one before in row 1",
        ),
    ],
    ids=["shape", "values", "both", "before"],
)
def test_unused_mask_errors(padfree, unused, text):
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]])
    with pytest.raises(ValueError) as error:
        padfree.bert_padding.unpad_input(HIDDEN, mask, unused)
    assert str(error.value) == f"unpad_input: {text}"


@pytest.mark.parametrize(
    ("lengths", "kind", "text"),
    [
        (ONES.float(), TypeError, "must be int32 or int64, got float32"),
        (ONES[:1], ValueError, "must have size 2 in dimension 0, got 1"),
        (torch.tensor([[1, 1, 0], [2, -1, 0]]), ValueError, "must hold lengths of 0 or more, got -1"),
        (
            torch.tensor([[1, 1, 0], [2, 2, 0]]),
            ValueError,
            "must hold at most 3 tokens a row, as hidden_states has, got 4",
        ),
        (
            torch.tensor([[1, 1, 0], [2**62, 2**62, 0]]),
            ValueError,
            f"must hold at most 3 tokens a row, as hidden_states has, got {2**62}",
        ),
    ],
    ids=["dtype", "shape", "sign", "sum", "overflow"],
)
def test_concatenated_errors(padfree, lengths, kind, text):
    with pytest.raises(kind) as error:
        padfree.bert_padding.unpad_input_for_concatenated_sequences(HIDDEN, lengths)
    assert str(error.value) == f"unpad_input_for_concatenated_sequences: attention_mask_in_length {text}"


VALUES = torch.zeros(2, 3)
INDEX_ERRORS = {
    "input_type": ("index_first_axis", (None, torch.tensor([0])), TypeError, "input must be a tensor, got NoneType"),
    "input_rank": (
        "index_first_axis",
        (torch.tensor(1.0), torch.tensor([0])),
        ValueError,
        "input must have 1 dimension or more, got 0",
    ),
    "above": ("index_first_axis", (VALUES, torch.tensor([0, 2])), ValueError, "indices must be 0 to 1, got 2"),
    "below": ("index_first_axis", (VALUES, torch.tensor([-1, 0])), ValueError, "indices must be 0 to 1, got -1"),
    "dtype": (
        "index_first_axis",
        (VALUES, torch.tensor([True, False])),
        TypeError,
        "indices must be int32 or int64, got bool",
    ),
    "rank": ("index_first_axis", (VALUES, torch.tensor([[0]])), ValueError, "indices must have 1 dimension, got 2"),
    "residual": ("index_first_axis", (VALUES, torch.tensor([7])), ValueError, "indices must be 0 to 1, got 7"),
    "values_type": (
        "index_put_first_axis",
        ([1.0], torch.tensor([0]), 4),
        TypeError,
        "values must be a tensor, got list",
    ),
    "values_rank": (
        "index_put_first_axis",
        (torch.tensor(1.0), torch.tensor([0]), 4),
        ValueError,
        "values must have 1 dimension or more, got 0",
    ),
    "put_above": (
        "index_put_first_axis",
        (VALUES, torch.tensor([0, 4]), 4),
        ValueError,
        "indices must be 0 to 3, got 4",
    ),
    "put_fewer": (
        "index_put_first_axis",
        (VALUES, torch.tensor([0]), 4),
        ValueError,
        "indices must have size 2 in dimension 0, got 1",
    ),
    "put_twice": (
        "index_put_first_axis",
        (VALUES, torch.tensor([3, 3]), 4),
        ValueError,
        "indices must name each row once, got 3 twice",
    ),
    "pad_above": (
        "pad_input",
        (VALUES, torch.tensor([0, 6]), 2, 3),
        ValueError,
        "indices must be 0 to 5, got 6",
    ),
    "pad_type": (
        "pad_input",
        (None, torch.tensor([0, 6]), 2, 3),
        TypeError,
        "hidden_states must be a tensor, got NoneType",
    ),
    "pad_batch": ("pad_input", (VALUES, torch.tensor([0, 5]), -2, 3), ValueError, "batch must be 0 or more, got -2"),
    "pad_seqlen": ("pad_input", (VALUES, torch.tensor([0, 5]), 2, 3.0), TypeError, "seqlen must be an int, got float"),
    "pad_overflow": (
        "pad_input",
        (VALUES, torch.tensor([0, 5]), 2**62, 3),
        ValueError,
        f"batch * seqlen must be below 2**31, got {3 * 2**62}",
    ),
    "put_overflow": (
        "index_put_first_axis",
        (VALUES, torch.tensor([0, 1]), 2**31),
        ValueError,
        f"first_axis_dim must be below 2**31, got {2**31}",
    ),
    "put_rows": (
        "index_put_first_axis",
        (VALUES, torch.tensor([0, 1]), None),
        TypeError,
        "first_axis_dim must be an int, got NoneType",
    ),
}


@pytest.mark.parametrize(("name", "given", "kind", "text"), INDEX_ERRORS.values(), ids=INDEX_ERRORS)
def test_index_errors(padfree, name, given, kind, text):
    with pytest.raises(kind) as error:
        getattr(padfree.bert_padding, name)(*given)
    assert str(error.value) == f"{name}: {text}"
