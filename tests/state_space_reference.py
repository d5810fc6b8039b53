"""Float64 oracle of the state-space scan (Mamba 2), written from the recurrence; gradients by autograd through it.

As in ``reference.py``: a dict ``name -> (wanted, allowance)``, allowances by Monte Carlo arithmetic.
"""

from itertools import pairwise

import torch
from perturbation import SAMPLES, Perturbation, repeated, spread
from tolerance import FUNCTION_ULPS

# A kernel that works chunk by chunk sums over the channels of a state and over the tokens of a chunk.
CHUNK = 64


def step_sizes(dt, dt_bias, dt_softplus, dt_limit, perturb):
    """dt of every token and head as the scan uses it, (runs, B, T, H)."""
    if dt_bias is not None:
        dt = perturb(dt + dt_bias[:, None, None])
    if dt_softplus:  # of e^x the exponent is rounded
        dt = perturb(torch.nn.functional.softplus(dt), FUNCTION_ULPS + dt.detach().abs(), FUNCTION_ULPS)
    return dt.clamp(*dt_limit)


def scan_sequence(x, dt, A, B, C, state, perturb):
    """(y, state) of one sequence: x (runs, T, H, P), dt (runs, T, H), A (runs, H), B and C repeated to H heads."""
    terms = B.shape[-1] + CHUNK  # of the sums over states and tokens; gradients also sum over channels
    terms_backward = terms + x.shape[-1]
    outs = []
    for t in range(x.shape[1]):
        exponent = A * dt[:, t]
        decay = perturb(exponent.exp(), FUNCTION_ULPS + exponent.detach().abs(), terms_backward)
        added = perturb(dt[:, t, :, None, None] * x[:, t, :, :, None] * B[:, t, :, None, :], 3, terms_backward)
        state = perturb(state * decay[..., None, None] + added)
        outs.append(perturb(state * C[:, t, :, None, :], terms, terms_backward).sum(-1))
    return torch.stack(outs, 1) if outs else torch.zeros_like(x), state


def sequences(rows, length, seq_idx, cu_seqlens):
    """(batch row, begin, end, state row it begins with, state row it leaves) of each sequence; None for no row."""
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        return [(0, begin, end, i, i) for i, (begin, end) in enumerate(pairwise(ends))]
    if seq_idx is None:
        return [(b, 0, length, b, b) for b in range(rows)]
    found = []
    for b, row in enumerate(seq_idx.tolist()):
        begins = [t for t in range(length) if t == 0 or row[t] != row[t - 1]]
        ends = [*begins[1:], length][: len(begins)]
        runs = [r for r in zip(begins, ends, strict=True) if row[r[0]] >= 0] or [(0, 0)]
        for i, (begin, end) in enumerate(runs):
            found.append((b, begin, end, b if i == 0 else None, b if i == len(runs) - 1 else None))
    return found


def state_space(
    x, dt, A, B, C, *, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None,
    dt_softplus=False, dt_limit=(0.0, float("inf")), dout=None, dfinal_states=None,
):  # fmt: skip
    """``out``, ``final_states`` (a row for each row of the states) and, with ``dout``, the gradient of each input."""
    perturb = Perturbation()
    given = {
        "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "initial_states": initial_states,
    }  # fmt: skip
    given = {name: tensor for name, tensor in given.items() if tensor is not None}
    leaves = {name: repeated(tensor) for name, tensor in given.items()}
    batch, length, heads, headdim = x.shape
    step = step_sizes(leaves["dt"], leaves.get("dt_bias"), dt_softplus, dt_limit, perturb)
    B, C = (leaves[name].repeat_interleave(heads // B.shape[2], 3) for name in "BC")
    count = batch if cu_seqlens is None else len(cu_seqlens) - 1
    initial = leaves.get("initial_states")
    if initial is None:  # a leaf: without a token, nothing else has a gradient
        shape = (1 + SAMPLES, count, heads, headdim, B.shape[-1])
        initial = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    rows, finals = torch.zeros_like(leaves["x"]), list(initial.unbind(1))
    pieces = []
    for b, begin, end, first, last in sequences(batch, length, seq_idx, cu_seqlens):
        of = (slice(None), b, slice(begin, end))
        state = torch.zeros_like(initial[:, 0]) if first is None else initial[:, first]
        y, state = scan_sequence(leaves["x"][of], step[of], leaves["A"], B[of], C[of], state, perturb)
        y = y + _skip(leaves, perturb)[of]
        if z is not None:
            gate = torch.nn.functional.silu(leaves["z"][of])
            y = perturb(y * perturb(gate, FUNCTION_ULPS + leaves["z"][of].detach().abs()), 1)
        pieces.append((of, y))
        if last is not None:
            finals[last] = state
    for of, y in pieces:
        rows = rows.clone()
        rows[of] = y
    final_states = torch.stack(finals, 1) if finals else initial
    states = (-3, -2, -1)
    values = {"out": spread(rows, x.dtype, (-2, -1)), "final_states": spread(final_states, torch.float32, states)}
    if dout is not None:
        target = (rows * dout.double()).sum()
        if dfinal_states is not None:
            target = target + (final_states * dfinal_states.double()).sum()
        gradients = torch.autograd.grad(target, list(leaves.values()), allow_unused=True, materialize_grads=True)
        pooled = {"dt": (0, 1, 2), "initial_states": states, "A": (0,), "dt_bias": (0,)}
        for name, gradient in zip(leaves, gradients, strict=True):
            dims = pooled.get(name, tuple(range(given[name].dim())) if name == "D" else (-2, -1))
            values["d" + name] = spread(gradient, given[name].dtype, dims)
    return values


def _skip(leaves, perturb):
    """D x, (runs, B, T, H, P); zeros without D."""
    x, D = leaves["x"], leaves.get("D")
    if D is None:
        return torch.zeros_like(x)
    D = D[:, None, None, :, None] if D.dim() == 2 else D[:, None, None]
    return perturb(x * D, 1, CHUNK + x.shape[-1])
