"""One call of the selective scan, dense or packed, with its gradients; and its comparison with the oracle."""

from itertools import pairwise

import reference
import torch
from cases import on_threads, randn
from tolerance import assert_close

GRADIENTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_states")


def numbers(lengths, padding=0, device="cpu"):
    """seq_idx (1, L) of sequences of these lengths, and ``padding`` positions without one behind them."""
    index = [i for i, length in enumerate(lengths) for _ in range(length)] + [-1] * padding
    return torch.tensor([index], dtype=torch.int32, device=device)


def inputs(
    shape=(2, 24, 40), states=5, groups=1, dtype=torch.float32, device="cpu", lengths=None, padding=0, rows=None, seed=0
):
    """A dict of every argument of a (B, D, L) call, dout and dlast_state; ``lengths``: packed, then B is 1."""
    if lengths is not None:
        shape = (1, shape[1], sum(lengths) + padding)
    batch, channels, seqlen = shape
    rows = rows or (batch if lengths is None else len(lengths))
    projection = (batch, groups, states, seqlen) if groups > 1 else (batch, states, seqlen)
    case = {
        "u": randn(*shape, dtype=dtype, seed=seed),
        "delta": randn(*shape, dtype=dtype, seed=seed + 1),
        "A": -3 * randn(channels, states, seed=seed + 2).abs(),
        "B": randn(*projection, dtype=dtype, seed=seed + 3),
        "C": randn(*projection, dtype=dtype, seed=seed + 4),
        "D": randn(channels, seed=seed + 5),
        "z": randn(*shape, dtype=dtype, seed=seed + 6),
        "delta_bias": randn(channels, seed=seed + 7) - 2,
        "delta_softplus": True,
        "initial_states": randn(rows, channels, states, seed=seed + 8),
        "dout": randn(*shape, dtype=dtype, seed=seed + 9),
        "dlast_state": randn(rows, channels, states, seed=seed + 10),
    }
    if lengths is not None:
        case["seq_idx"] = numbers(lengths, padding)
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in case.items()}


def call(padfree, dout=None, dlast_state=None, **case):
    """Runs the public function; a dict of out, last_state and, where dout is given, a gradient for each tensor."""
    leaves = {n: case[n].detach().requires_grad_(dout is not None) for n in GRADIENTS if case.get(n) is not None}
    out, last_state = padfree.selective_scan_fn(**{**case, **leaves, "return_last_state": True})
    result = {"out": out, "last_state": last_state}
    if dout is not None:
        used = [(out, dout), (last_state, dlast_state)]
        outputs, gradients = zip(*[(x, d) for x, d in used if d is not None], strict=True)
        differentiated = torch.autograd.grad(outputs, list(leaves.values()), gradients)
        result.update({"d" + name: d for name, d in zip(leaves, differentiated, strict=True)})
    return {name: x.detach() for name, x in result.items()}


def oracle(case):
    """Everything ``call`` must return, and the allowances; ``count`` as in `reference.selective_scan`."""
    with on_threads(1):  # thousands of small operations: waking a second thread costs more than it does
        return reference.selective_scan(**case)


def check(padfree, case, **options):
    """Runs ``case`` and compares everything it returns with the oracle; returns what it got."""
    got = call(padfree, **case, **options)
    counted = {**case, "count": got["last_state"].shape[0]}
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        lengths = [end - begin for begin, end in pairwise(ends)]
        counted["seq_idx"] = numbers(lengths, case["u"].shape[2] - sum(lengths))
    wanted = oracle(counted)
    assert set(got) == set(wanted)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
    return got


def only(case, *names):
    """The case without the arguments of these names."""
    return {name: x for name, x in case.items() if name not in names}


def forward_only(case):
    return only(case, "dout", "dlast_state")
