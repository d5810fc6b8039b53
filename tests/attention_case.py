"""One attention call, dense or packed, with its gradients; and its comparison with the oracle."""

import reference
import torch
from cases import cu_seqlens, randn
from tolerance import assert_close


def inputs(lengths_q, lengths_k, heads=(2, 2), dims=(16, 16), dtype=torch.float32, device="cpu", packed=False, seed=0):
    """A dict of q, k, v, dout, dlse (and cu_seqlens when ``packed``) for sequences of these lengths.

    Dense inputs need equal lengths: one batch row a sequence. ``heads`` (heads_q, heads_kv), ``dims`` (D, Dv).
    """
    rows, keys = sum(lengths_q), sum(lengths_k)
    shapes = {
        "q": (rows, heads[0], dims[0]),
        "k": (keys, heads[1], dims[0]),
        "v": (keys, heads[1], dims[1]),
        "dout": (rows, heads[0], dims[1]),
    }
    case = {n: randn(*s, dtype=dtype, seed=seed + i, device=device) for i, (n, s) in enumerate(shapes.items())}
    case["dlse"] = randn(heads[0], rows, seed=seed + 4, device=device)
    if packed:
        case["cu_seqlens_q"] = cu_seqlens(lengths_q, device=device)
        case["cu_seqlens_k"] = cu_seqlens(lengths_k, device=device)
        return case
    batch = len(lengths_q)
    case["dlse"] = case["dlse"].unflatten(1, (batch, -1)).transpose(0, 1)
    return {n: t if n == "dlse" else t.unflatten(0, (batch, -1)) for n, t in case.items()}


def call(padfree, q, k, v, dout=None, dlse=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen=None, **options):
    """Runs the public function; a dict of out, lse and, where dout or dlse is given, dq, dk, dv (and dsinks)."""
    differentiate = dout is not None or dlse is not None
    leaves = {"dq": q, "dk": k, "dv": v}
    if options.get("s_aux") is not None:
        leaves["dsinks"] = options["s_aux"]
    leaves = {name: tensor.detach().requires_grad_(differentiate) for name, tensor in leaves.items()}
    if "dsinks" in leaves:
        options["s_aux"] = leaves["dsinks"]
    qkv = leaves["dq"], leaves["dk"], leaves["dv"]
    if cu_seqlens_q is None:
        out, lse, _ = padfree.flash_attn_func(*qkv, return_attn_probs=True, **options)
    else:
        longest = max_seqlen or (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
        out, lse, _ = padfree.flash_attn_varlen_func(
            *qkv, cu_seqlens_q, cu_seqlens_k, *longest, return_attn_probs=True, **options
        )
    result = {"out": out, "lse": lse}
    if differentiate:
        used = [(out, dout), (lse, dlse)]
        outputs, gradients = zip(*[(o, g) for o, g in used if g is not None], strict=True)
        result.update(zip(leaves, torch.autograd.grad(outputs, list(leaves.values()), gradients), strict=True))
    return {name: tensor.detach() for name, tensor in result.items()}


def check(padfree, case, **options):
    """Runs ``case`` and compares everything it returns with the oracle; returns what it got."""
    got = call(padfree, **case, **options)
    for name in ("s_aux", "learnable_sink"):
        if name in options:
            options["sinks"] = options.pop(name)
    wanted = reference.attention(**case, **options)
    assert set(got) == set(wanted)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
    for name, like in (("out", "q"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
        if name in got:
            assert got[name].dtype == case[like].dtype, name
            assert got[name].is_contiguous(), name
    assert got["lse"].dtype == torch.float32
    return got
