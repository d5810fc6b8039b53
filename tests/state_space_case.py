"""One call of the state-space scan, dense or packed, with its gradients; and its comparison with the oracle."""

import torch
from cases import cu_seqlens, on_threads, randn
from state_space_reference import state_space
from tolerance import assert_close

TOKENS = ("x", "dt", "B", "C", "z", "dout")
"""What has a row for each token."""

LEAVES = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states")
"""What has a gradient."""


def inputs(
    lengths, heads=(2, 1), dims=(8, 16), dtype=torch.float32, device="cpu", packed=False, state=True, gate=False,
    skip="head", bias=True, slack=0, seed=0,
):  # fmt: skip
    """A dict of arguments for sequences of these lengths, dout and dfinal_states included.

    Dense inputs need equal lengths: one batch row a sequence. ``heads`` (of x, groups of B), ``dims`` (P, N), ``skip``
    "head", "channel" or None: the shape of D.
    """
    batch, rows = (1, sum(lengths) + slack) if packed else (len(lengths), lengths[0])
    over, states = (batch, rows), (len(lengths), heads[0], *dims)
    drawn = {
        "x": randn(*over, heads[0], dims[0], dtype=dtype, seed=seed),
        "dt": randn(*over, heads[0], seed=seed + 1) - 1,
        "A": -randn(heads[0], seed=seed + 2).exp(),
        "B": randn(*over, heads[1], dims[1], dtype=dtype, seed=seed + 3),
        "C": randn(*over, heads[1], dims[1], dtype=dtype, seed=seed + 4),
        "dt_softplus": True,
        "dout": randn(*over, heads[0], dims[0], dtype=dtype, seed=seed + 5),
        "dfinal_states": randn(*states, seed=seed + 6),
    }
    if state:
        drawn["initial_states"] = randn(*states, seed=seed + 7)
    if gate:
        drawn["z"] = randn(*over, heads[0], dims[0], dtype=dtype, seed=seed + 8)
    if skip is not None:
        drawn["D"] = randn(*(heads[:1] if skip == "head" else (heads[0], dims[0])), seed=seed + 9)
    if bias:
        drawn["dt_bias"] = randn(heads[0], seed=seed + 10)
    case = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in drawn.items()}
    if packed:
        case["cu_seqlens"] = cu_seqlens(lengths, device=device)
    return case


def call(padfree, dout=None, dfinal_states=None, chunk_size=64, **arguments):
    """Runs the public function; a dict of out, final_states and, where dout is given, a gradient for each input."""
    leaves = {n: arguments[n].detach().requires_grad_(dout is not None) for n in LEAVES if arguments.get(n) is not None}
    which = "return_varlen_states" if arguments.get("cu_seqlens") is not None else "return_final_states"
    out, final_states = padfree.mamba_chunk_scan_combined(
        **{**arguments, **leaves}, chunk_size=chunk_size, **{which: True}
    )
    result = {"out": out, "final_states": final_states}
    if dout is not None:
        used = [(out, dout), (final_states, dfinal_states)]
        outputs, gradients = zip(*[(x, d) for x, d in used if d is not None], strict=True)
        differentiated = torch.autograd.grad(outputs, list(leaves.values()), gradients)
        result.update({"d" + name: d for name, d in zip(leaves, differentiated, strict=True)})
    return {name: x.detach() for name, x in result.items()}


def oracle(case):
    """Everything ``call`` must return, and the allowances."""
    with on_threads(1):  # thousands of small operations: waking a second thread costs more than it does
        return state_space(**case)


def check(padfree, case, oracle_case=None):
    """Runs ``case`` and compares everything it returns with the oracle; returns what it got."""
    got = call(padfree, **case)
    wanted = oracle(oracle_case or case)
    assert set(got) == set(wanted)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
    return got


def only(case, *names):
    """The case without the arguments of these names."""
    return {name: x for name, x in case.items() if name not in names}


def forward_only(case):
    return only(case, "dout", "dfinal_states")
