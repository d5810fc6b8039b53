"""One call of the causal convolution with its gradients; and its comparison with the oracle."""

import cases
import reference
import torch
from tolerance import assert_close


def channel_first(x):
    return x.contiguous()


LAYOUTS = {"channel_first": channel_first, "channel_last": cases.channel_last}


def seq_idx_of(*rows):
    """Rows of (sequence number, length) pairs as (B, L) int32."""
    rows = [torch.repeat_interleave(*(torch.tensor(list(column)) for column in zip(*row, strict=True))) for row in rows]
    return torch.stack(rows).to(torch.int32)


def numbered(*lengths):
    return list(enumerate(lengths))


def inputs(
    batch, channels, seqlen, width, *, dtype=torch.float32, weight_dtype=None, bias=True, states=0, layout=channel_first
):
    """x, weight, bias, initial_states (N rows, None for 0) and dout."""
    weight_dtype = weight_dtype or dtype
    x = layout(cases.embed_in_nan(cases.randn(batch, channels, seqlen, dtype=dtype)))
    weight = cases.randn(channels, width, dtype=weight_dtype, seed=1)
    bias = cases.randn(channels, dtype=weight_dtype, seed=2) if bias else None
    states = cases.randn(states, channels, width - 1, dtype=dtype, seed=3) if states else None
    return x, weight, bias, states, cases.randn(batch, channels, seqlen, dtype=dtype, seed=4)


def run(padfree, x, weight, bias=None, seq_idx=None, states=None, dout=None, dfinal=None, activation="silu"):
    """Every output and gradient by the oracle's names."""
    leaves = {"dx": x, "dweight": weight, "dbias": bias, "dinitial_states": states}
    leaves = {name: t.detach().requires_grad_() for name, t in leaves.items() if t is not None}
    wants_final = dfinal is not None
    result = padfree.causal_conv1d_fn(
        leaves["dx"], leaves["dweight"], leaves.get("dbias"), seq_idx, leaves.get("dinitial_states"),
        return_final_states=wants_final, activation=activation,
    )  # fmt: skip
    outputs = dict(zip(("out", "final_states"), result if wants_final else (result,), strict=False))
    if dout is None:
        return outputs
    gradients = torch.autograd.grad(
        list(outputs.values()), list(leaves.values()), [dout, dfinal][: len(outputs)], allow_unused=True
    )
    return {**outputs, **{n: g for n, g in zip(leaves, gradients, strict=True) if g is not None}}


def check(padfree, x, weight, bias, states, dout, seq_idx=None, activation="silu", dfinal=None):
    got = run(padfree, x, weight, bias, seq_idx, states, dout, dfinal, activation)
    wanted = reference.causal_conv1d(x, weight, bias, seq_idx, states, activation, dout, dfinal)
    for name, tensor in got.items():
        assert_close(tensor, *wanted[name], name)
    return got
