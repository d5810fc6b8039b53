"""The single-step state update of both Mambas against the float64 oracle and against the scan."""

import pytest
import reference
import torch
from cases import DTYPES, dtype_id, embed_in_nan, randn
from scan_case import only
from tolerance import assert_close, assert_same_bits
from update_case import call, check, inputs

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
FORMS = pytest.mark.parametrize("form", ["mamba1", "mamba2"])


@pytest.mark.parametrize("states", [1, 3, 4, 7, 8, 9, 15, 16, 17, 33, 64, 128])
@pytest.mark.parametrize("tied", [False, True])
def test_numbers_of_states(padfree, device, states, tied):
    check(padfree, inputs("mamba1", states=states, device=device))
    check(padfree, inputs("mamba2", states=states, device=device, tied=tied))


@ALL_DTYPES
@FORMS
def test_dtypes(padfree, device, form, dtype):
    got = check(padfree, inputs(form, dtype=dtype, device=device))
    assert got["out"].dtype == dtype
    assert got["state"].dtype == dtype


@FORMS
def test_every_tensor_may_have_its_own_dtype(padfree, device, form):
    case = inputs(form, device=device)
    mixed = {"state": torch.float32, "x": torch.bfloat16, "dt": torch.float16, "A": torch.float32, "B": torch.float16,
             "C": torch.bfloat16, "D": torch.bfloat16, "z": torch.float32, "dt_bias": torch.float16}  # fmt: skip
    check(padfree, {**case, **{name: case[name].to(dtype) for name, dtype in mixed.items()}})


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 70), (3, 5, 64), (0, 2, 4), (2, 2, 0)], ids=str)
@FORMS
def test_shapes(padfree, device, form, shape):
    batch, heads, dim = shape
    check(padfree, inputs(form, batch, heads, dim, groups=1, device=device))


def test_more_than_one_task(padfree, device, threads):
    """Channels and heads are cut where a task would move more than 16384 numbers of states."""
    check(padfree, inputs("mamba1", dim=2100, device=device))
    check(padfree, inputs("mamba2", heads=6, dim=64, states=128, groups=3, device=device))
    check(padfree, inputs("mamba2", heads=2, dim=200, states=128, groups=1, device=device))


@pytest.mark.parametrize("absent", [("D",), ("z",), ("dt_bias",), ("D", "z", "dt_bias")], ids=str)
@pytest.mark.parametrize("softplus", [False, True])
@FORMS
def test_optional_arguments(padfree, device, form, absent, softplus):
    check(padfree, {**only(inputs(form, device=device), *absent), "dt_softplus": softplus})


@FORMS
def test_tied_decays_equal_those_written_out(padfree, device, form):
    case = inputs(form, device=device)
    wanted = call(padfree, **case)
    got = call(padfree, **{n: x.contiguous() if isinstance(x, torch.Tensor) else x for n, x in case.items()})
    for name, x in wanted.items():
        assert_same_bits(got[name], x, name)


@FORMS
def test_state_rows_by_index(padfree, device, form):
    case = inputs(form, batch=4, device=device)
    wanted = call(padfree, **case)
    pool = torch.full((7, *case["state"].shape[1:]), float("nan"), device=device)
    rows = torch.tensor([5, 9, -1, 9, 0, 9, 3, 9], dtype=torch.int32, device=device)[::2]
    kept = [0, 2, 3]
    pool[rows[kept].long()] = case["state"][kept]
    out = padfree.selective_state_update(pool, **only(case, "state"), state_batch_indices=rows)
    assert_same_bits(out[kept], wanted["out"][kept], "out")
    assert torch.count_nonzero(out[1]) == 0
    assert_same_bits(pool[rows[kept].long()], wanted["state"][kept], "state")
    assert pool[[1, 2, 4, 6]].isnan().all()


@pytest.mark.parametrize("name", ["state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias"])
@FORMS
def test_layouts(padfree, device, form, name):
    case = inputs(form, device=device, tied=False)
    wanted = call(padfree, **case)
    for lay in (embed_in_nan, lambda x: x.transpose(0, -1).contiguous().transpose(0, -1)):
        laid = {**case, name: lay(case[name])}
        state = laid["state"] if name == "state" else laid["state"].clone()
        out = padfree.selective_state_update(state, **only(laid, "state"))
        assert_same_bits(out, wanted["out"], "out")
        assert_same_bits(state, wanted["state"], "state")


@FORMS
def test_poison_stays_in_its_row(padfree, device, form):
    case = inputs(form, batch=3, device=device, tied=False)
    clean = call(padfree, **case)
    for name in ("state", "x", "dt", "B", "C", "z"):
        case[name][1] = float("nan")
    dirty = call(padfree, **case)
    for name, x in clean.items():
        assert_same_bits(dirty[name][[0, 2]], x[[0, 2]], name)


@FORMS
def test_threads_do_not_change_a_bit(padfree, device, form):
    case = inputs(form, heads=8, dim=64, states=128, device=device)
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


def test_steps_arrive_where_the_scan_does(padfree, device):
    """Token by token: within what the scan's oracle allows one call of the whole text."""
    case = {n: x for n, x in inputs(dim=20, device=device).items() if n in ("A", "D", "dt_bias")}
    u, delta, z = (randn(2, 20, 9, seed=s, device=device) for s in (20, 21, 22))
    B, C = (randn(2, 16, 9, seed=s, device=device) for s in (23, 24))
    state, steps = torch.zeros(2, 20, 16, device=device), []
    for t in range(9):
        token = {"x": u[..., t], "dt": delta[..., t], "B": B[..., t], "C": C[..., t], "z": z[..., t]}
        steps.append(padfree.selective_state_update(state, **token, **case, dt_softplus=True))
    bias = case.pop("dt_bias")
    wanted = reference.selective_scan(u, delta, B=B, C=C, z=z, **case, delta_bias=bias, delta_softplus=True)
    assert_close(torch.stack(steps, -1), *wanted["out"], "out")
    assert_close(state, *wanted["last_state"], "state")


@FORMS
def test_differentiable_where_a_gradient_is_wanted(padfree, device, form):
    case = inputs(form, device=device)
    leaves = {n: case[n].clone().requires_grad_() for n in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")}
    got = call(padfree, **{**case, **leaves})
    for name, wanted in reference.selective_state_update(**case).items():
        assert_close(got[name], *wanted, name)
    dout = randn(*got["out"].shape, seed=9, device=device)
    got["out"].backward(dout)
    for name, (value, allowance) in as_one_token(case, dout).items():
        shape = leaves[name].shape
        assert_close(leaves[name].grad, value.reshape(shape), allowance.reshape(shape), name)


def as_one_token(case, dout):
    """The gradients of a step by the scan's oracle: a scan over one token, all heads side by side as channels."""
    heads = case["x"].dim() - 1

    def column(x):
        return x.flatten(1)[..., None]

    def flat(x):
        return x.flatten(0, heads - 1)

    names = {"x": "u", "dt": "delta", "dt_bias": "delta_bias"}
    as_column, as_flat = ("x", "dt", "z"), ("A", "D", "dt_bias")
    scan = {names.get(n, n): column(case[n]) if n in as_column else flat(case[n]) for n in (*as_column, *as_flat)}
    scan |= {n: case[n][..., None] for n in ("B", "C")}
    wanted = reference.selective_scan(
        **scan, delta_softplus=True, initial_states=case["state"].flatten(1, heads), dout=column(dout)
    )
    return {n: wanted["d" + names.get(n, n)] for n in (*as_column, *as_flat, "B", "C")}
