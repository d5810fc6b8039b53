"""One call of the gated delta rule, dense or packed, with its gradients; and its comparison with the oracle."""

import reference
import torch
from cases import cu_seqlens, on_threads, randn
from tolerance import assert_close

GATES = ["head", "channel"]
"""A gate per head: chunk_gated_delta_rule. A gate per channel: chunk_kda."""


def inputs(
    lengths, gate="head", heads=(1, 2), dims=(16, 24), dtype=torch.float32, device="cpu", packed=False, state=True,
    slack=0, seed=0,
):  # fmt: skip
    """A dict of q, k, v, g, beta, dout, dfinal_state (initial_state, cu_seqlens) for sequences of these lengths.

    Dense inputs need equal lengths: one batch row a sequence. ``heads`` (of k, of v), ``dims`` (K, V).
    """
    batch, rows = (1, sum(lengths) + slack) if packed else (len(lengths), lengths[0])
    over = (batch, rows)
    gates = (*over, heads[1]) if gate == "head" else (*over, heads[1], dims[0])
    states = (len(lengths), heads[1], *dims)
    drawn = {
        "q": randn(*over, heads[0], dims[0], dtype=dtype, seed=seed),
        "k": randn(*over, heads[0], dims[0], dtype=dtype, seed=seed + 1),
        "v": randn(*over, heads[1], dims[1], dtype=dtype, seed=seed + 2),
        "g": -0.3 * randn(*gates, seed=seed + 3).square(),
        "beta": randn(*over, heads[1], seed=seed + 4).sigmoid(),
        "dout": randn(*over, heads[1], dims[1], dtype=dtype, seed=seed + 5),
        "dfinal_state": randn(*states, seed=seed + 6),
    }
    if state:
        drawn["initial_state"] = randn(*states, seed=seed + 7)
    case = {name: x.to(device) for name, x in drawn.items()}
    if packed:
        case["cu_seqlens"] = cu_seqlens(lengths, device=device)
    return case


def function_of(padfree, g, recurrent=False):
    if recurrent:
        return padfree.fused_recurrent_gated_delta_rule if g.dim() == 3 else padfree.fused_recurrent_kda
    return padfree.chunk_gated_delta_rule if g.dim() == 3 else padfree.chunk_kda


def call(
    padfree, q, k, v, g, beta, dout=None, dfinal_state=None, initial_state=None, l2norm=True, recurrent=False, **options
):
    """Runs the public function; a dict of out, final_state and, where dout is given, a gradient for each input."""
    leaves = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    leaves = {n: x.detach().requires_grad_(dout is not None) for n, x in leaves.items() if x is not None}
    out, final_state = function_of(padfree, g, recurrent)(
        **leaves, output_final_state=True, use_qk_l2norm_in_kernel=l2norm, **options
    )
    result = {"out": out, "final_state": final_state}
    if dout is not None:
        used = [(out, dout), (final_state, dfinal_state)]
        outputs, gradients = zip(*[(x, d) for x, d in used if d is not None], strict=True)
        differentiated = torch.autograd.grad(outputs, list(leaves.values()), gradients)
        result.update({"d" + name: d for name, d in zip(leaves, differentiated, strict=True)})
    return {name: x.detach() for name, x in result.items()}


def oracle(case, **options):
    """Everything ``call`` must return, and the allowances."""
    with on_threads(1):  # thousands of small operations: waking a second thread costs more than it does
        return reference.gated_delta_rule(**{"l2norm": True, **case, **options})


def check(padfree, case, oracle_case=None, unrolled=False, **options):
    """Runs ``case`` and compares everything it returns with the oracle; returns what it got."""
    got = call(padfree, **case, **options)
    options.pop("recurrent", None)
    wanted = oracle(oracle_case or case, unrolled=unrolled, **options)
    assert set(got) == set(wanted)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
    return got


def only(case, *names):
    """The case without the arguments of these names."""
    return {name: x for name, x in case.items() if name not in names}


def forward_only(case):
    return only(case, "dout", "dfinal_state")
