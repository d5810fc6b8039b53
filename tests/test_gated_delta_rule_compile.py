"""The gated delta rule ops under torch's own machinery: opcheck, torch.compile, second derivatives."""

import pytest
import torch
from cases import DTYPES, cu_seqlens, dtype_id
from delta_case import GATES, call, forward_only, function_of, inputs
from tolerance import assert_same_bits

NAMES = ("q", "k", "v", "g", "beta")
FORMS = pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
ALL_GATES = pytest.mark.parametrize("gate", GATES)


def op_inputs(case, requires_grad=False):
    tensors = [case[name].requires_grad_(requires_grad) for name in NAMES]
    state = case.get("initial_state")
    return (*tensors, None if state is None else state.requires_grad_(requires_grad), case.get("cu_seqlens"))


@FORMS
@ALL_GATES
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_opcheck_forward(ops, device, dtype, state, packed, gate):
    case = inputs([9, 9], gate, dims=(8, 24), dtype=dtype, device=device, packed=packed, state=state)
    torch.library.opcheck(ops.gated_delta_rule_fwd.default, (*op_inputs(case, True), 0.3, True, True, True))


@FORMS
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)], ids=str)
def test_opcheck_forward_without_states(ops, device, flags, packed):
    """Where the states were not saved, the backward computes them again."""
    case = inputs([9, 9], dims=(8, 24), device=device, packed=packed)
    torch.library.opcheck(ops.gated_delta_rule_fwd.default, (*op_inputs(case, True), 0.3, True, *flags))


@FORMS
@ALL_GATES
@pytest.mark.parametrize("state", [False, True])
def test_opcheck_backward(ops, device, state, packed, gate):
    case = inputs([9, 9], gate, dims=(8, 24), device=device, packed=packed, state=state)
    states = ops.gated_delta_rule_fwd(*op_inputs(case), 0.3, True, False, True)[2]
    dfinal = case["dfinal_state"] if state else None
    arguments = (case["dout"], dfinal, *op_inputs(case), states, 0.3, True)
    torch.library.opcheck(ops.gated_delta_rule_bwd.default, arguments)


@FORMS
@ALL_GATES
def test_opcheck_step(ops, device, packed, gate):
    case = inputs([3, 3], gate, device=device, packed=packed)
    torch.library.opcheck(ops.gated_delta_rule_recurrent.default, (*op_inputs(case), 0.3, True))
    torch.library.opcheck(ops.gated_delta_rule_update.default, (*op_inputs(case), 0.3, True))


def test_outputs_alias_no_input(ops, device):
    case = inputs([9], device=device)
    arguments = op_inputs(case)
    out, final_state, states = ops.gated_delta_rule_fwd(*arguments, 0.3, True, True, True)
    gradients = ops.gated_delta_rule_bwd(case["dout"], case["dfinal_state"], *arguments, states, 0.3, True)
    step = ops.gated_delta_rule_recurrent(*arguments, 0.3, True)
    tensors = (*arguments[:6], case["dout"], case["dfinal_state"], out, final_state, states, *gradients, *step)
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    assert len(set(storages)) == len(storages)


def test_states_saved_or_computed_again_give_the_same_gradients(ops, device):
    case = inputs([70], device=device)
    gradients = []
    for save in (True, False):
        arguments = [x if x is None else x.detach().clone().requires_grad_() for x in op_inputs(case)]
        out, final_state, _ = ops.gated_delta_rule_fwd(*arguments, 0.3, True, True, save)
        gradients.append(torch.autograd.grad((out * case["dout"]).sum() + final_state.sum(), arguments[:6]))
    for saved, again in zip(*gradients, strict=True):
        assert_same_bits(again, saved)


def test_second_derivative_is_refused(padfree, device):
    case = inputs([5], device=device)
    q = case["q"].requires_grad_()
    out, _ = padfree.chunk_gated_delta_rule(q, case["k"], case["v"], case["g"], case["beta"])
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError) as error:
        dq.sum().backward()
    text = "gated_delta_rule: a gradient must not be differentiated again (no second derivative is built)"
    assert str(error.value) == text


def step(padfree, gate):
    run = padfree.chunk_gated_delta_rule if gate == "head" else padfree.chunk_kda

    def loss(q, k, v, g, beta, initial_state, cu_seqlens, dout):
        out, final_state = run(
            q, k, v, g, beta, initial_state=initial_state, output_final_state=True, use_qk_l2norm_in_kernel=True,
            cu_seqlens=cu_seqlens,
        )  # fmt: skip
        return (out * dout).sum() + final_state.sum()

    return loss


@ALL_GATES
def test_fullgraph_trains_with_dynamic_lengths(padfree, device, gate):
    """One compilation, no graph break, the gradients of eager; new lengths do not compile again."""
    torch._dynamo.reset()
    eager, counter = step(padfree, gate), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(eager, backend=counter, fullgraph=True, dynamic=True)
    for lengths in ([40, 30], [64, 9], [5, 130]):
        case = inputs(lengths, gate, device=device, packed=True)
        results = []
        for function in (eager, compiled):
            leaves = [case[n].detach().clone().requires_grad_() for n in (*NAMES, "initial_state")]
            loss = function(*leaves, case["cu_seqlens"], case["dout"])
            results.append((loss, *torch.autograd.grad(loss, leaves)))
        for got, wanted in zip(*results[::-1], strict=True):
            assert_same_bits(got.detach(), wanted.detach())
    assert counter.frame_count == 1


@ALL_GATES
def test_fullgraph_step_in_place(padfree, device, gate):
    torch._dynamo.reset()
    case = forward_only(inputs([1], gate, device=device))
    tensors = {n: case[n] for n in NAMES}

    def decode(state):
        return function_of(padfree, case["g"], recurrent=True)(
            **tensors, initial_state=state, output_final_state=True, inplace_final_state=True
        )

    states = [case["initial_state"].clone() for _ in range(2)]
    wanted, got = decode(states[0]), torch.compile(decode, fullgraph=True, backend="aot_eager")(states[1])
    assert_same_bits(got[0], wanted[0], "out")
    assert_same_bits(states[1], states[0], "state")


def test_boundaries_are_checked_when_compiled(padfree, device):
    """Values cannot be looked at while tracing; the kernel then refuses them itself."""
    torch._dynamo.reset()
    case = forward_only(inputs([5, 4], device=device, packed=True, state=False))
    compiled = torch.compile(lambda c: call(padfree, **{**case, "cu_seqlens": c}), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="cu_seqlens must not decrease, got 3 after 5"):
        compiled(torch.tensor([0, 5, 3], dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"cu_seqlens must end at or below the number of rows \(9\), got 10"):
        compiled(cu_seqlens([5, 5]))


@ALL_GATES
@pytest.mark.parametrize("width", [8, 17, 24])
def test_outputs_hold_no_stray_memory(ops, device, gate, width):
    """New tensors are born full of NaN here; padding columns and the chunks of an empty sequence must not keep it."""
    case = inputs([9, 0, 70], gate, dims=(8, width), device=device, packed=True, state=True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        outputs = ops.gated_delta_rule_fwd(*op_inputs(case), 0.3, True, True, True)
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(output.isfinite().all() for output in outputs)
