"""The attention ops under torch's own machinery: opcheck, torch.compile, torch.export, second derivatives."""

import pytest
import torch
from attention_case import call, inputs
from cases import DTYPES, dtype_id, randn
from tolerance import assert_same_bits

OP_OPTIONS = (0.25, True, -1, 0, 0.0)  # softmax_scale, causal, window_left, window_right, softcap


def op_arguments(case, *options):
    packed = "cu_seqlens_q" in case
    bounds = (case["cu_seqlens_q"], case["cu_seqlens_k"], 9, 9) if packed else (None, None, 9, 9)
    return (*bounds, *(options or OP_OPTIONS))


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_opcheck_forward(ops, device, dtype, packed):
    case = inputs([9, 9], [9, 9], (4, 2), (16, 8), dtype, device, packed)
    qkv = [case[name].requires_grad_() for name in ("q", "k", "v")]
    torch.library.opcheck(ops.attention_fwd.default, (*qkv, *op_arguments(case)))


def modifiers(case, mask):
    """sinks, alibi_slopes, dropout and its seed, seqused or a mask."""
    used = [None, None, mask] if mask is not None else [torch.tensor([9, 4], dtype=torch.int32)] * 2
    return (randn(4, seed=7), randn(2, 4, seed=8).abs(), 0.3, torch.tensor([5]), *used)


@pytest.mark.parametrize("packed", [False, True], ids=["mask", "seqused"])
def test_opcheck_with_modifiers(ops, device, packed):
    case = inputs([9, 9], [9, 9], (4, 2), (16, 8), torch.float32, device, packed)
    mask = None if packed else randn(2, 4, 9, 9, seed=6)
    qkv = [case[name] for name in ("q", "k", "v")]
    chosen = modifiers(case, mask)
    out, lse = ops.attention_fwd(*qkv, *op_arguments(case), *chosen)
    gradients = (case["dout"], case["dlse"].contiguous(), *qkv, out, lse, *op_arguments(case), *chosen)
    torch.library.opcheck(ops.attention_bwd.default, (*gradients, *([] if packed else [True])))
    leaves = [tensor.clone().requires_grad_() for tensor in (*qkv, chosen[0])]
    mask = None if packed else mask.clone().requires_grad_()
    chosen = (leaves.pop(), *chosen[1:6], mask) if mask is not None else (leaves.pop(), *chosen[1:])
    torch.library.opcheck(ops.attention_fwd.default, (*leaves, *op_arguments(case), *chosen))


@pytest.mark.parametrize("with_dlse", [False, True])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_opcheck_backward(ops, device, packed, with_dlse):
    case = inputs([9, 9], [9, 9], (4, 2), (16, 8), torch.float32, device, packed)
    qkv = [case[name] for name in ("q", "k", "v")]
    out, lse = ops.attention_fwd(*qkv, *op_arguments(case))
    dlse = case["dlse"].contiguous() if with_dlse else None
    torch.library.opcheck(ops.attention_bwd.default, (case["dout"], dlse, *qkv, out, lse, *op_arguments(case)))


def test_outputs_alias_no_input(ops, device):
    case = inputs([9], [9], device=device)
    qkv = [case[name] for name in ("q", "k", "v")]
    out, lse = ops.attention_fwd(*qkv, *op_arguments(case))
    gradients = ops.attention_bwd(case["dout"], None, *qkv, out, lse, *op_arguments(case))
    tensors = [t for t in (*qkv, case["dout"], out, lse, *gradients) if t.numel()]
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    assert len(set(storages)) == len(storages)


def test_second_derivative_is_refused(padfree, device):
    case = inputs([5], [5], device=device)
    q = case["q"].requires_grad_()
    out = padfree.flash_attn_func(q, case["k"], case["v"])
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError) as error:
        dq.sum().backward()
    assert str(error.value) == "attention: a gradient must not be differentiated again (no second derivative is built)"


def dense(padfree):
    def step(q, k, v, dout):
        out, lse, _ = padfree.flash_attn_func(q, k, v, causal=True, softcap=20.0, return_attn_probs=True)
        return (out * dout).sum() + lse.clamp_min(-1e4).sum()

    return step


def packed(padfree):
    def step(q, k, v, dout, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        out = padfree.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True, window_size=(5, 0)
        )
        return (out * dout).sum()

    return step


def loss_and_gradients(step, case, *bounds):
    qkv = [case[name].detach().clone().requires_grad_() for name in ("q", "k", "v")]
    loss = step(*qkv, case["dout"], *bounds)
    loss.backward()
    return {"loss": loss.detach(), **{f"d{n}": t.grad for n, t in zip("qkv", qkv, strict=True)}}


def assert_all_same_bits(got, wanted):
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_fullgraph_trains_a_dense_batch(padfree, device, dtype):
    torch._dynamo.reset()
    case = inputs([21, 21], [30, 30], (4, 2), (16, 16), dtype, device)
    compiled = torch.compile(dense(padfree), fullgraph=True, backend="aot_eager")
    assert_all_same_bits(loss_and_gradients(compiled, case), loss_and_gradients(dense(padfree), case))


@pytest.mark.parametrize("max_seqlen", ["int", "tensor"])
def test_dynamic_lengths_do_not_recompile(padfree, device, max_seqlen):
    torch._dynamo.reset()
    compiled = torch.compile(packed(padfree), fullgraph=True, backend="aot_eager", dynamic=True)
    # The first call's sizes all differ: torch's duck sizing would tie equal ones together.
    for index, lengths in enumerate(([9, 4, 6], [8, 20, 5], [30, 2, 2, 17], [3, 50], [60, 61, 3, 4, 5])):
        case = inputs(lengths, lengths, (6, 3), device=device, packed=True, seed=index)
        longest = max(lengths) if max_seqlen == "int" else torch.tensor(max(lengths), device=device)
        bounds = (case["cu_seqlens_q"], case["cu_seqlens_k"], longest, longest)
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            got = loss_and_gradients(compiled, case, *bounds)
        assert_all_same_bits(got, loss_and_gradients(packed(padfree), case, *bounds))


def test_fullgraph_with_every_modifier(padfree, device):
    """Sinks, ALiBi and dropout: the compiled step draws the seed from the same generator."""
    torch._dynamo.reset()
    case = inputs([21, 4], [21, 4], (4, 2), device=device, packed=True)
    sinks, slopes = randn(4, seed=7, device=device), randn(4, seed=8, device=device).abs()

    def step(q, k, v, dout):
        out = padfree.flash_attn_varlen_func(
            q, k, v, case["cu_seqlens_q"], case["cu_seqlens_k"], 21, 21, 0.3, alibi_slopes=slopes, s_aux=sinks
        )
        return (out * dout).sum()

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(4)
        results.append(loss_and_gradients(function, case))
    assert_all_same_bits(results[1], results[0])


def test_fullgraph_with_a_learned_mask(padfree, device):
    torch._dynamo.reset()
    case = inputs([9, 9], [12, 12], (4, 2), device=device)

    def step(q, k, v, mask):
        return (padfree.attention_with_mask(q, k, v, mask) * case["dout"]).sum()

    gradients = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        mask = randn(1, 4, 9, 12, seed=3, device=device).requires_grad_()
        function(case["q"], case["k"], case["v"], mask).backward()
        gradients.append(mask.grad)
    assert_same_bits(gradients[1], gradients[0])


def test_fullgraph_decodes_into_the_cache(padfree, device):
    torch._dynamo.reset()
    q, k, v = (randn(2, 1, heads, 16, seed=seed, device=device) for seed, heads in ((0, 4), (1, 2), (2, 2)))

    def step(k_cache, v_cache, lengths, table):
        return padfree.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, causal=True
        )

    lengths = torch.tensor([5, 9], dtype=torch.int32, device=device)
    table = torch.tensor([[4, 1, -1], [0, 3, 2]], dtype=torch.int32, device=device)
    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        caches = randn(5, 4, 2, 16, seed=3, device=device), randn(5, 4, 2, 16, seed=4, device=device)
        results.append((function(*caches, lengths, table), *caches))
    for got, wanted in zip(results[1], results[0], strict=True):
        assert_same_bits(got, wanted)
    caches = randn(5, 4, 2, 16, seed=3, device=device), randn(5, 4, 2, 16, seed=4, device=device)
    with pytest.raises(IndexError, match="out of bounds"):  # a page that is not there, unseen while tracing
        function(*caches, lengths, table - 2)


def test_inductor_runs_the_same_kernels(padfree, device):
    torch._dynamo.reset()
    case = inputs([21, 4], [21, 4], (4, 2), device=device, packed=True)

    def attend(q, k, v):
        return padfree.flash_attn_varlen_func(q, k, v, case["cu_seqlens_q"], case["cu_seqlens_k"], 21, 21, causal=True)

    wanted = call(padfree, **{n: t for n, t in case.items() if n not in ("dlse", "dout")}, causal=True)["out"]
    assert_same_bits(torch.compile(attend, fullgraph=True)(case["q"], case["k"], case["v"]), wanted)


def test_kernel_speaks_where_tracing_cannot_look(padfree, device):
    """While compiling, cu_seqlens are not readable; the kernel refuses them at run time with the same words."""
    torch._dynamo.reset()
    case = inputs([9, 4], [9, 4], device=device, packed=True)
    compiled = torch.compile(packed(padfree), fullgraph=True, backend="aot_eager")
    wrong = case["cu_seqlens_q"] + 1
    texts = []
    for step in (packed(padfree), compiled):
        with pytest.raises((ValueError, RuntimeError)) as error:
            step(case["q"], case["k"], case["v"], case["dout"], wrong, case["cu_seqlens_k"], 9, 9)
        texts.append(str(error.value))
    assert texts[0] == "attention: cu_seqlens_q must start at 0, got 1"
    assert texts[0] in texts[1]
    with pytest.raises(
        RuntimeError, match=r"attention: max_seqlen_q must be at least the longest sequence \(9\), got 8"
    ):
        compiled(case["q"], case["k"], case["v"], case["dout"], case["cu_seqlens_q"], case["cu_seqlens_k"], 8, 8)


class Attend(torch.nn.Module):
    """One packed attention as a module, for torch.export."""

    def __init__(self, padfree):
        super().__init__()
        self.attend = padfree.flash_attn_varlen_func

    def forward(self, q, k, v, cu_seqlens):
        return self.attend(q, k, v, cu_seqlens, cu_seqlens, q.shape[0], k.shape[0], causal=True)


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_export_with_dynamic_lengths(padfree, device, strict):
    torch._dynamo.reset()
    total, ends = torch.export.Dim("total", min=2, max=4096), torch.export.Dim("ends", min=2, max=256)
    case = inputs([9, 4, 2], [9, 4, 2], (4, 2), device=device, packed=True)
    arguments = (case["q"], case["k"], case["v"], case["cu_seqlens_q"])
    shapes = ({0: total}, {0: total}, {0: total}, {0: ends})
    program = torch.export.export(Attend(padfree), arguments, dynamic_shapes=shapes, strict=strict)
    other = inputs([30, 1], [30, 1], (4, 2), device=device, packed=True)
    arguments = (other["q"], other["k"], other["v"], other["cu_seqlens_q"])
    assert_same_bits(program.module()(*arguments), Attend(padfree)(*arguments))


def test_meta_tensors_give_shapes(padfree):
    q = torch.empty(7, 4, 16, device="meta", dtype=torch.bfloat16)
    ends = torch.empty(3, device="meta", dtype=torch.int32)
    out, lse, _ = padfree.flash_attn_varlen_func(q, q, q[..., :8], ends, ends, 7, 7, return_attn_probs=True)
    assert out.shape == (7, 4, 8)
    assert out.dtype == torch.bfloat16
    assert lse.shape == (4, 7)
    assert lse.dtype == torch.float32
