"""The state-space ops under torch's own machinery: opcheck, torch.compile, second derivatives."""

import pytest
import torch
import torch._dynamo.testing
from cases import DTYPES, cu_seqlens, dtype_id
from state_space_case import call, forward_only, inputs
from tolerance import assert_same_bits

NAMES = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states")
OPTIONS = (True, 0.01, 2.0)  # dt_softplus, dt_min, dt_max
FORMS = pytest.mark.parametrize("form", ["dense", "cu_seqlens", "seq_idx"])


def case_of(form, device, dtype=torch.float32, **options):
    case = inputs([9, 9], (4, 2), (8, 24), dtype, device, packed=form == "cu_seqlens", **options)
    if form == "seq_idx":
        case["seq_idx"] = torch.tensor([[-1] * 2 + [0] * 3 + [1] * 4, [5] * 9], dtype=torch.int32, device=device)
    return case


def op_inputs(case, requires_grad=False):
    tensors = [None if case.get(n) is None else case[n].requires_grad_(requires_grad) for n in NAMES]
    return (*tensors, case.get("seq_idx"), case.get("cu_seqlens"))


@FORMS
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_opcheck_forward(ops, device, dtype, everything, form):
    options = {} if everything else {"skip": None, "bias": False}
    case = case_of(form, device, dtype, state=everything, gate=everything, **options)
    torch.library.opcheck(ops.state_space_fwd.default, (*op_inputs(case, True), *OPTIONS, True, True))


@FORMS
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)], ids=str)
def test_opcheck_forward_without_states(ops, device, flags, form):
    """Where the states were not saved, the backward computes them again."""
    torch.library.opcheck(ops.state_space_fwd.default, (*op_inputs(case_of(form, device), True), *OPTIONS, *flags))


@FORMS
@pytest.mark.parametrize("everything", [False, True])
def test_opcheck_backward(ops, device, everything, form):
    options = {"skip": "channel"} if everything else {"skip": None, "bias": False}
    case = case_of(form, device, state=everything, gate=everything, **options)
    states = ops.state_space_fwd(*op_inputs(case), *OPTIONS, False, True)[2]
    dfinal = case["dfinal_states"] if everything else None
    arguments = (case["dout"], dfinal, *op_inputs(case), states, *OPTIONS)
    torch.library.opcheck(ops.state_space_bwd.default, arguments)


def test_outputs_alias_no_input(ops, device):
    case = inputs([70], device=device, gate=True)
    arguments = op_inputs(case)
    outputs = ops.state_space_fwd(*arguments, *OPTIONS, True, True)
    gradients = ops.state_space_bwd(case["dout"], case["dfinal_states"], *arguments, outputs[2], *OPTIONS)
    tensors = (*(x for x in arguments if x is not None), case["dout"], case["dfinal_states"], *outputs, *gradients)
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    assert len(set(storages)) == len(storages)


def test_states_saved_or_computed_again_give_the_same_gradients(ops, device):
    case = inputs([150], device=device, gate=True)
    gradients = []
    for save in (True, False):
        arguments = [x if x is None else x.detach().clone().requires_grad_() for x in op_inputs(case)]
        out, final_states, _ = ops.state_space_fwd(*arguments, *OPTIONS, True, save)
        leaves = [x for x in arguments if x is not None]
        gradients.append(torch.autograd.grad((out * case["dout"]).sum() + final_states.sum(), leaves))
    for saved, again in zip(*gradients, strict=True):
        assert_same_bits(again, saved)


def test_second_derivative_is_refused(padfree, device):
    case = forward_only(inputs([5], device=device))
    x = case["x"].requires_grad_()
    out = padfree.mamba_chunk_scan_combined(**case, chunk_size=64)
    (dx,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError) as error:
        dx.sum().backward()
    text = "state_space: a gradient must not be differentiated again (no second derivative is built)"
    assert str(error.value) == text


@pytest.mark.parametrize("form", ["cu_seqlens", "seq_idx"])
def test_fullgraph_trains_with_dynamic_lengths(padfree, device, form):
    """No graph break, the gradients of eager; new lengths do not compile again.

    The first compilation starts over once, when torch has seen that the numbers of ``dt_limit`` are constants.
    """
    torch._dynamo.reset()
    states = "return_varlen_states" if form == "cu_seqlens" else "return_final_states"

    def loss(boundaries, dout, *leaves):
        given = dict(zip((n for n in NAMES if n != "z"), leaves, strict=True))
        out, final_states = padfree.mamba_chunk_scan_combined(
            **given, chunk_size=64, dt_softplus=True, **{form: boundaries, states: True}
        )
        return (out * dout).sum() + final_states.sum()

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    compilations = []
    for lengths in ([40, 30], [64, 9], [5, 130]):
        case = inputs(lengths, device=device, packed=True)
        boundaries = case["cu_seqlens"]
        if form == "seq_idx":
            case["initial_states"] = case["initial_states"][:1]
            index = torch.arange(2, dtype=torch.int32).repeat_interleave(torch.tensor(lengths))
            boundaries = index[None].to(device)
        results = []
        for function in (loss, compiled):
            leaves = [case[n].detach().clone().requires_grad_() for n in NAMES if n != "z"]
            value = function(boundaries, case["dout"], *leaves)
            results.append((value, *torch.autograd.grad(value, leaves)))
        for got, wanted in zip(*results[::-1], strict=True):
            assert_same_bits(got.detach(), wanted.detach())
        compilations.append(counter.frame_count)
    assert compilations[1:] == compilations[:1] * 2


def test_boundaries_are_checked_when_compiled(padfree, device):
    """Values cannot be looked at while tracing; the kernel then refuses them itself."""
    torch._dynamo.reset()
    case = forward_only(inputs([5, 4], device=device, packed=True, state=False))
    compiled = torch.compile(lambda c: call(padfree, **{**case, "cu_seqlens": c}), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="cu_seqlens must not decrease, got 3 after 5"):
        compiled(torch.tensor([0, 5, 3], dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"cu_seqlens must end at or below the number of rows \(9\), got 10"):
        compiled(cu_seqlens([5, 5]))


@pytest.mark.parametrize("headdim", [8, 17, 24])
def test_outputs_hold_no_stray_memory(ops, device, headdim):
    """New tensors are born full of NaN here; padding columns, rows of no sequence, states of none must not keep it."""
    case = inputs([9, 0, 70], dims=(headdim, 8), device=device, packed=True, slack=3, gate=True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        outputs = ops.state_space_fwd(*op_inputs(case), *OPTIONS, True, True)
        gradients = ops.state_space_bwd(case["dout"], case["dfinal_states"], *op_inputs(case), outputs[2], *OPTIONS)
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(x.isfinite().all() for x in (*outputs, *gradients))
