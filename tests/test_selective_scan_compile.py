"""The selective scan ops under torch's own machinery: opcheck, torch.compile, second derivatives."""

import pytest
import torch
from cases import DTYPES, cu_seqlens, dtype_id, randn
from scan_case import GRADIENTS, call, forward_only, inputs, numbers, only
from test_selective_state_update import inputs as step_inputs
from tolerance import assert_same_bits

FORMS = pytest.mark.parametrize("lengths", [None, [9, 35]], ids=["dense", "packed"])


def op_inputs(case, requires_grad=False):
    tensors = {n: x.requires_grad_(requires_grad) for n, x in case.items() if n in GRADIENTS}
    for name in ("B", "C"):
        if tensors[name].dim() == 3:
            tensors[name] = tensors[name].detach()[:, None].requires_grad_(requires_grad)
    first = [tensors.get(n) for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    return (*first, case.get("seq_idx"), tensors.get("initial_states"))


@FORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("absent", [(), ("D", "z", "delta_bias", "initial_states")], ids=["all", "least"])
def test_opcheck_forward(ops, device, dtype, absent, lengths):
    case = only(inputs((2, 20, 40), dtype=dtype, device=device, lengths=lengths), *absent)
    case.update({n: case[n].float() for n in ("B", "C")})
    torch.library.opcheck(ops.selective_scan_fwd.default, (*op_inputs(case, True), True, 2, True))


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("constant", ["", "B", "BC"])
def test_opcheck_of_layouts_and_constant_matrices(ops, device, channel_last, constant):
    case = inputs((2, 20, 40), groups=2, device=device)
    case.update({n: randn(20, 5, seed=30, device=device) for n in constant})
    if channel_last:
        case.update({n: case[n].transpose(1, 2).contiguous().transpose(1, 2) for n in ("u", "delta", "z")})
    arguments = op_inputs(case)
    torch.library.opcheck(ops.selective_scan_fwd.default, (*arguments, True, -1, True))
    saved = ops.selective_scan_fwd(*arguments, True, -1, True)[2]
    torch.library.opcheck(ops.selective_scan_bwd.default, (case["dout"], None, *arguments, saved, True))


@FORMS
@pytest.mark.parametrize("states", [-1, 2])
def test_opcheck_where_the_backward_computes_the_states_again(ops, device, states, lengths):
    case = inputs((2, 20, 40), device=device, lengths=lengths)
    torch.library.opcheck(ops.selective_scan_fwd.default, (*op_inputs(case, True), True, states, False))


@FORMS
@pytest.mark.parametrize("absent", [(), ("D", "z", "delta_bias", "initial_states")], ids=["all", "least"])
def test_opcheck_backward(ops, device, absent, lengths):
    case = only(inputs((2, 20, 40), device=device, lengths=lengths), *absent)
    arguments = op_inputs(case)
    saved = ops.selective_scan_fwd(*arguments, True, 2, True)[2]
    torch.library.opcheck(ops.selective_scan_bwd.default, (case["dout"], case["dlast_state"], *arguments, saved, True))


@pytest.mark.parametrize("form", ["mamba1", "mamba2"])
@pytest.mark.parametrize("indexed", [False, True])
def test_opcheck_step(ops, device, form, indexed):
    case = step_inputs(form, device=device)
    rows = torch.tensor([1, 0], dtype=torch.int32, device=device) if indexed else None
    tensors = [case[n] for n in ("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias")]
    torch.library.opcheck(ops.selective_state_update.default, (*tensors, True, rows))


def test_outputs_alias_no_input(ops, device):
    case = inputs((2, 20, 40), device=device)
    arguments = op_inputs(case)
    outputs = ops.selective_scan_fwd(*arguments, True, 2, True)
    gradients = ops.selective_scan_bwd(case["dout"], case["dlast_state"], *arguments, outputs[2], True)
    tensors = [t for t in (*arguments, case["dout"], case["dlast_state"], *outputs, *gradients) if t is not None]
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    assert len(set(storages)) == len(storages)


def test_states_saved_or_computed_again_give_the_same_gradients(ops, device):
    case = inputs((1, 20, 0), device=device, lengths=[9, 60, 3])
    gradients = []
    for save in (True, False):
        arguments = [x if x is None or x.dtype == torch.int32 else x.detach().clone().requires_grad_()
                     for x in op_inputs(case)]  # fmt: skip
        out, last_state, _ = ops.selective_scan_fwd(*arguments, True, 3, save)
        leaves = [x for x in arguments if x.requires_grad]
        gradients.append(torch.autograd.grad((out * case["dout"]).sum() + last_state.sum(), leaves))
    for saved, again in zip(*gradients, strict=True):
        assert_same_bits(again, saved)


def test_second_derivative_is_refused(padfree, device):
    case = forward_only(inputs((1, 4, 5), device=device))
    u = case["u"].requires_grad_()
    (du,) = torch.autograd.grad(padfree.selective_scan_fn(**case).sum(), u, create_graph=True)
    with pytest.raises(NotImplementedError) as error:
        du.sum().backward()
    text = "selective_scan: a gradient must not be differentiated again (no second derivative is built)"
    assert str(error.value) == text


def loss(padfree, case):
    out, last_state = padfree.selective_scan_fn(**forward_only(case), return_last_state=True)
    return (out * case["dout"]).sum() + (last_state * case["dlast_state"]).sum()


@pytest.mark.parametrize("boundaries", ["seq_idx", "cu_seqlens"])
def test_fullgraph_trains_with_dynamic_lengths(padfree, device, boundaries):
    """One compilation, no graph break, the gradients of eager; new lengths do not compile again."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda case: loss(padfree, case), backend=counter, fullgraph=True, dynamic=True)
    for lengths in ([40, 30], [64, 9], [5, 70]):
        case = inputs((1, 20, 0), device=device, lengths=lengths)
        if boundaries == "cu_seqlens":
            case = {**only(case, "seq_idx"), "cu_seqlens": cu_seqlens(lengths, device=device)}
        results = []
        for function in (lambda case: loss(padfree, case), compiled):
            leaves = {n: case[n].detach().clone().requires_grad_() for n in GRADIENTS}
            value = function({**case, **leaves})
            results.append((value, *torch.autograd.grad(value, list(leaves.values()))))
        for got, wanted in zip(*results[::-1], strict=True):
            assert_same_bits(got.detach(), wanted.detach())
    assert counter.frame_count == 1


@pytest.mark.parametrize("form", ["mamba1", "mamba2"])
def test_fullgraph_step(padfree, device, form):
    torch._dynamo.reset()
    case = step_inputs(form, device=device)
    states = [case.pop("state"), None]
    states[1] = states[0].clone()

    def step(state):
        return padfree.selective_state_update(state, **case)

    wanted, got = step(states[0]), torch.compile(step, fullgraph=True, backend="aot_eager")(states[1])
    assert_same_bits(got, wanted, "out")
    assert_same_bits(states[1], states[0], "state")


def test_boundaries_are_checked_when_compiled(padfree, device):
    """Values cannot be looked at while tracing; the kernel then refuses them itself."""
    torch._dynamo.reset()
    case = forward_only(inputs((1, 8, 0), device=device, lengths=[5, 4]))
    compiled = torch.compile(lambda i: call(padfree, **{**case, "seq_idx": i}), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="seq_idx must number each sequence differently where states are passed"):
        compiled(torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.int32))
    with pytest.raises(RuntimeError, match="seq_idx must be below the 2 rows of the states, got 2"):
        compiled(numbers([3, 3, 3]))


def test_outputs_hold_no_stray_memory(ops, device):
    """New tensors are born full of NaN here; padding, empty lanes and chunks without a sequence must not keep it."""
    case = inputs((1, 20, 0), device=device, lengths=[9, 35], padding=40, rows=4)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        outputs = ops.selective_scan_fwd(*op_inputs(case), True, 4, True)
        arguments = (case["dout"], case["dlast_state"], *op_inputs(case), outputs[2], True)
        gradients = ops.selective_scan_bwd(*arguments)
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(output.isfinite().all() for output in (*outputs, *gradients))
