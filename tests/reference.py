"""Float64 oracles, written from the formulas and nothing else; gradients come from autograd through them.

Every oracle returns a dict ``name -> (wanted, allowance)`` that goes into ``tolerance.assert_close``. A section an op.
"""

import contextlib
import functools
from typing import NamedTuple

import attention_allowance
import torch
from perturbation import SAMPLES, Perturbation, repeated, spread
from tolerance import FUNCTION_ULPS, dot_allowance, gamma, rounded, unit_roundoff


def on_the_cpu(oracle):
    """The oracle computes on the CPU, whatever device its arguments are on and new tensors have by default."""

    @functools.wraps(oracle)
    def computed(*args, **options):
        elsewhere = torch.get_default_device().type != "cpu"
        with torch.device("cpu") if elsewhere else contextlib.nullcontext():
            return oracle(*map(_on_the_cpu, args), **{name: _on_the_cpu(value) for name, value in options.items()})

    return computed


def _on_the_cpu(value):
    return value.cpu() if isinstance(value, torch.Tensor) else value


# ---- attention -------------------------------------------------------------------------------------------------------


class AttentionOptions(NamedTuple):
    """What one attention call may ask for; ``sinks`` (H), ``alibi_slopes`` (H) or (B, H)."""

    softmax_scale: float
    causal: bool = False
    window_size: tuple = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    dropout_p: float = 0.0


class AttentionSequence(NamedTuple):
    """One sequence's attention and what its error analysis needs; heads first: (H, Sq, ...)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    raw: torch.Tensor  # scale * q.k, before softcap, ALiBi and mask
    scores: torch.Tensor
    visible: torch.Tensor
    weights: torch.Tensor  # softmax, before dropout
    keep: torch.Tensor  # 1 / (1 - dropout_p) where kept, else 0
    out: torch.Tensor
    lse: torch.Tensor


def visible_keys(seqlen_q, seqlen_k, causal, window_size):
    """Bool (Sq, Sk): query i sits at position i + Sk - Sq and sees keys from ``left`` before to ``right`` after it."""
    position = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k)[None, :]
    left, right = window_size[0], 0 if causal else window_size[1]
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if left >= 0:
        visible &= key >= position - left
    if right >= 0:
        visible &= key <= position + right
    return visible


def attention_sequence(q, k, v, options, slopes=None, keep=None, mask=None):
    """softmax(softcap(scale q k^T) - slope |i + Sk - Sq - j| + mask, sinks) v of one sequence, float64, heads first.

    q (H, Sq, D), k and v repeated to H heads; ``slopes`` (H); ``keep`` bool (H, Sq, Sk); ``mask`` bool or float.
    """
    heads, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    visible = visible_keys(seqlen_q, seqlen_k, options.causal, options.window_size).expand(heads, -1, -1)
    raw = options.softmax_scale * (q @ k.transpose(-1, -2))
    scores = options.softcap * torch.tanh(raw / options.softcap) if options.softcap > 0 else raw
    if slopes is not None:
        distance = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q - torch.arange(seqlen_k)[None, :]
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    if mask is not None:
        visible = visible & (mask if mask.dtype == torch.bool else mask > float("-inf"))
        scores = scores if mask.dtype == torch.bool else scores + torch.where(visible, mask, 0.0)
    no_sinks = torch.full((heads,), float("-inf"), dtype=torch.float64)
    sinks = no_sinks if options.sinks is None else options.sinks
    columns = torch.cat([scores.masked_fill(~visible, float("-inf")), sinks[:, None, None].expand(-1, seqlen_q, 1)], -1)
    peak = columns.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).min)
    exponentials = torch.exp(columns - peak)
    total = exponentials.sum(-1, keepdim=True)
    dead = total == 0
    weights = (exponentials / total.masked_fill(dead, 1.0))[..., :-1]
    lse = (peak + torch.log(total.masked_fill(dead, 1.0))).masked_fill(dead, float("-inf")).squeeze(-1)
    kept = torch.ones_like(weights) if keep is None else keep.double() / (1 - options.dropout_p)
    out = (weights * kept) @ v
    return AttentionSequence(q, k, v, raw, scores, visible, weights, kept, out, lse)


@on_the_cpu
def attention(
    q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, dout=None, dlse=None, keep=None, mask=None,
    softmax_scale=None, **options,
):  # fmt: skip
    """What attention must return: ``out``, ``lse`` and, with ``dout`` or ``dlse``, ``dq``, ``dk``, ``dv`` (``dsinks``).

    Shapes, dtypes and options as in ``flash_attn_func`` (4-D inputs) or ``flash_attn_varlen_func`` (3-D, cu_seqlens).
    ``keep``: bool (H, Sq, Sk) a sequence, which weights dropout keeps; ``mask`` (B, 1 or H, Sq, Sk), 4-D inputs only.
    """
    options = AttentionOptions(softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5, **options)
    wide = [tensor.detach().cpu().double().requires_grad_() for tensor in (q, k, v)]
    leaves, stored = list(wide), {}
    if options.sinks is not None:
        stored["dsinks"] = options.sinks.dtype
        leaves.append(options.sinks.detach().cpu().double().requires_grad_())
        options = options._replace(sinks=leaves[-1])
    if mask is not None and mask.dtype != torch.bool:
        stored["dmask"] = mask.dtype
        leaves.append(mask.detach().cpu().double().requires_grad_())
        mask = leaves[-1]
    if mask is not None:
        mask = mask.cpu().expand(q.shape[0], -1, -1, -1)
    spans = _attention_spans(q, k, cu_seqlens_q, cu_seqlens_k, seqused_k)
    flat = [tensor.flatten(0, 1) if cu_seqlens_q is None else tensor for tensor in wide]
    sequences = []
    for index, (rows, keys) in enumerate(spans):
        heads_first = [t[span].transpose(0, 1) for t, span in zip(flat, (rows, keys, keys), strict=True)]
        group = q.shape[-2] // k.shape[-2]
        repeated = [heads_first[0], *(t.repeat_interleave(group, 0) for t in heads_first[1:])]
        slopes = options.alibi_slopes
        slopes = slopes[index] if slopes is not None and slopes.dim() == 2 else slopes
        sequences.append(
            attention_sequence(
                *repeated, options, slopes, None if keep is None else keep[index], None if mask is None else mask[index]
            )
        )
    total_q = flat[0].shape[0]
    out = _rows([s.out for s in sequences], spans, total_q, 0.0)
    lse = _rows([s.lse for s in sequences], spans, total_q, float("-inf"))
    values = {"out": out, "lse": lse}
    if dout is not None or dlse is not None:
        douts, dlses = _output_gradients(dout, dlse, q, out, lse)
        alive = lse.isfinite()
        target = (out * douts).sum() + (torch.where(alive, lse, 0.0) * dlses).sum()
        names = ["dq", "dk", "dv", *(["dsinks"] if options.sinks is not None else []), "dmask"]
        gradients = torch.autograd.grad(target, leaves, allow_unused=True)
        for name, leaf, gradient in zip(names, leaves, gradients, strict=False):
            values[name] = torch.zeros_like(leaf) if gradient is None else gradient
    else:
        douts = dlses = None
    allowances = attention_allowance.of(sequences, spans, options, values, douts, dlses, q.dtype, stored, k.shape[-2])
    return {name: (_as_called(name, x, q, k), _as_called(name, allowances[name], q, k)) for name, x in values.items()}


def _attention_spans(q, k, cu_seqlens_q, cu_seqlens_k, seqused_k):
    """Rows and keys of each sequence, as slices of the flattened token dimension."""
    if cu_seqlens_q is None:
        batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
        bounds = [(b * seqlen_q, (b + 1) * seqlen_q, b * seqlen_k, (b + 1) * seqlen_k) for b in range(batch)]
    else:
        ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        bounds = list(zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True))
    used = [b[3] - b[2] for b in bounds] if seqused_k is None else seqused_k.tolist()
    return [(slice(b[0], b[1]), slice(b[2], b[2] + n)) for b, n in zip(bounds, used, strict=True)]


def _rows(parts, spans, total, fill):
    """Heads-first parts laid at their rows of a (total, H, ...) tensor; rows of no sequence hold ``fill``."""
    parts = [part.transpose(0, 1) for part in parts]
    laid, at = [], 0
    shape = parts[0].shape[1:]
    for part, (rows, _) in zip(parts, spans, strict=True):
        laid += [torch.full((rows.start - at, *shape), fill, dtype=torch.float64), part]
        at = rows.stop
    return torch.cat([*laid, torch.full((total - at, *shape), fill, dtype=torch.float64)])


def _output_gradients(dout, dlse, q, out, lse):
    """dout as (T, H, Dv) and dlse as (T, H), float64, zero where not given."""
    douts = torch.zeros_like(out) if dout is None else dout.detach().cpu().double().reshape(out.shape)
    if dlse is None:
        return douts, torch.zeros_like(lse)
    dlses = dlse.detach().cpu().double()
    return douts, dlses.transpose(0, 1) if dlse.dim() == 2 else dlses.transpose(1, 2).reshape(lse.shape)


def _as_called(name, tensor, q, k):
    """From the flattened token dimension back to the shape the caller's tensors have."""
    if name == "lse":
        return tensor.transpose(0, 1) if q.dim() == 3 else tensor.unflatten(0, q.shape[:2]).transpose(1, 2)
    if name == "out" and q.dim() == 4:
        return tensor.unflatten(0, q.shape[:2])
    return tensor


# ---- rotary ----------------------------------------------------------------------------------------------------------


@on_the_cpu
def rotary(x, cos, sin, positions, interleaved, dout):
    """Each pair (a, b) of x (B, S, H, D) as (a cos - b sin, a sin + b cos) of its position (B, S) and frequency.

    Two products and a sum an element; what lies past the turned width is exact. Returns out and dx.
    """
    width = 2 * cos.shape[1]
    pairs = torch.arange(width).view(-1, 2) if interleaved else torch.arange(width).view(2, -1).T

    def turned(x, cos, sin):
        first, second = x[..., pairs[:, 0]], x[..., pairs[:, 1]]
        out = x.clone()
        out[..., pairs[:, 0]], out[..., pairs[:, 1]] = first * cos - second * sin, first * sin + second * cos
        return out

    def result(x, cos, sin):
        wanted, magnitude = turned(x.double(), cos, sin), turned(x.double().abs(), cos.abs(), -sin.abs())
        magnitude = torch.maximum(magnitude, turned(x.double().abs(), cos.abs(), sin.abs()))
        allowance = dot_allowance(wanted, magnitude, 2, x.dtype)
        allowance[..., width:] = 0
        return wanted, allowance

    cos, sin = (table.double()[positions][:, :, None] for table in (cos, sin))
    return {"out": result(x, cos, sin), "dx": result(dout, cos, -sin)}


# ---- causal_conv1d ---------------------------------------------------------------------------------------------------


class ConvSequence(NamedTuple):
    """One run of equal ``seq_idx`` (a whole batch row without it), and the row of the states that belongs to it."""

    batch: int
    begin: int
    end: int
    state: int


def conv_sequences(batch, seqlen, seq_idx):
    """The sequences of a (B, L) batch; those with a negative ``seq_idx`` are padding and left out."""
    if seq_idx is None:
        return [ConvSequence(b, 0, seqlen, b) for b in range(batch)]
    found = []
    for b, row in enumerate(seq_idx.tolist()):
        starts = [i for i in range(seqlen) if i == 0 or row[i] != row[i - 1]]
        ends = [*starts[1:], seqlen]
        found += [ConvSequence(b, i, j, row[i]) for i, j in zip(starts, ends, strict=True) if row[i] >= 0]
    return found


def _conv_windows(x, states, sequence, width):
    """(D, n, W): what each position of the sequence sees, oldest first; the state, or zeros, lie before it."""
    before = x.new_zeros(x.shape[1], width - 1) if states is None else states[sequence.state]
    return torch.cat([before, x[sequence.batch, :, sequence.begin : sequence.end]], -1).unfold(1, width, 1)


@on_the_cpu
def causal_conv1d(
    x, weight, bias=None, seq_idx=None, initial_states=None, activation=None, dout=None, dfinal_states=None
):
    """act(bias + sum_k weight[k] x[l - (W - 1) + k]): ``out``, ``final_states``; with ``dout`` every gradient.

    Shapes as in ``causal_conv1d_fn``; a ``dfinal_states`` is the gradient of the final states, added to the others.
    """
    leaves = {"dx": x, "dweight": weight, "dbias": bias, "dinitial_states": initial_states}
    leaves = {name: t.detach().cpu().double().requires_grad_() for name, t in leaves.items() if t is not None}
    x64, weight64, bias64 = leaves["dx"], leaves["dweight"], leaves.get("dbias")
    states64 = leaves.get("dinitial_states")
    width, sequences = weight.shape[1], conv_sequences(x.shape[0], x.shape[2], seq_idx)
    silu = activation is not None

    absolute = {name: leaf.detach().abs().requires_grad_() for name, leaf in leaves.items()}
    pre, magnitude = torch.zeros_like(x64), torch.zeros_like(x64)
    inside = torch.zeros_like(x64)
    for s in sequences:
        span = (s.batch, slice(None), slice(s.begin, s.end))
        pre[span] = (_conv_windows(x64, states64, s, width) * weight64[:, None]).sum(-1)
        windows = _conv_windows(absolute["dx"], absolute.get("dinitial_states"), s, width)
        magnitude[span] = (windows * absolute["dweight"][:, None]).sum(-1)
        inside[span] = 1.0
    if bias is not None:
        pre = pre + bias64[:, None] * inside
        magnitude = magnitude + absolute["dbias"][:, None] * inside
    out = torch.nn.functional.silu(pre) if silu else pre
    pre_error = gamma(width + 1) * magnitude.detach()
    results = {"out": (out, rounded(out.detach(), _silu_error(pre.detach(), pre_error, silu), x.dtype))}

    final = _conv_final_states(x64, states64, sequences, width)
    results["final_states"] = (final, torch.zeros_like(final))
    if dout is None:
        return results
    target = (out * dout.double()).sum()
    if dfinal_states is not None:
        target = target + (final * dfinal_states.double()).sum()
    gradients = torch.autograd.grad(target, list(leaves.values()), allow_unused=True, retain_graph=True)
    errors = _conv_gradient_errors(pre, pre_error, out, magnitude, absolute, dout, silu)
    dtypes = {"dx": x, "dweight": weight, "dbias": bias, "dinitial_states": initial_states}
    for (name, leaf), gradient, error in zip(leaves.items(), gradients, errors, strict=True):
        wanted = torch.zeros_like(leaf) if gradient is None else gradient
        error = torch.zeros_like(leaf) if error is None else error
        if dfinal_states is not None:  # autograd adds it to the stored gradient: one more rounding of each and the sum
            unit = unit_roundoff(dtypes[name].dtype)
            error = error + 2 * unit * (wanted.abs() + error + dfinal_states.double().abs().max())
        results[name] = (wanted, rounded(wanted, error, dtypes[name].dtype))
    return results


def _silu_error(pre, pre_error, silu):
    """What an error of ``pre`` and the evaluation of silu do to the output: |silu'| < 1.1, then sigmoid's own error."""
    if not silu:
        return pre_error
    return 1.1 * pre_error + pre.abs() * _sigmoid_error(pre)


def _sigmoid_error(pre):
    """1 / (1 + exp(-pre)): exp is off by |pre| + FUNCTION_ULPS roundoffs, of which s (1 - s) arrive; then two more."""
    s = torch.sigmoid(pre)
    return unit_roundoff(torch.float32) * (s * (1 - s) * (pre.abs() + FUNCTION_ULPS) + 3 * s)


def _conv_gradient_errors(pre, pre_error, out, magnitude, absolute, dout, silu):
    """Errors of the gradients of the leaves, in their order, before they are stored.

    dpre = dout silu'(pre) with |silu''| < 0.51; then sums of at most B L + W products of it, whose magnitudes come from
    the same graph over absolute values.
    """
    dout = dout.detach().double()
    (slope,) = torch.autograd.grad(out.sum(), pre) if silu else (torch.ones_like(pre),)
    pre = pre.detach()
    evaluation = (1 + pre.abs()) * _sigmoid_error(pre) + 4 * unit_roundoff(torch.float32) * (1 + pre.abs())
    dpre_error = dout.abs() * (0.51 * pre_error + evaluation) if silu else torch.zeros_like(pre)
    terms = pre.shape[0] * pre.shape[2] + absolute["dweight"].shape[1]
    error = dpre_error + gamma(terms) * (dout * slope).abs()
    return torch.autograd.grad((magnitude * error).sum(), list(absolute.values()), allow_unused=True)


def _conv_final_states(x, states, sequences, width):
    """(N, D, W - 1): the last inputs of each sequence, behind what is left of its initial state."""
    number = max((s.state + 1 for s in sequences), default=0) if states is None else states.shape[0]
    rows = list(x.new_zeros(number, x.shape[1], width - 1) if states is None else states)
    for s in sequences:
        rows[s.state] = torch.cat([rows[s.state], x[s.batch, :, s.begin : s.end]], -1)[:, -(width - 1) :]
    return torch.stack(rows) if rows else x.new_zeros(0, x.shape[1], width - 1)


@on_the_cpu
def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
):
    """``out`` and ``conv_state`` after the call, as in ``causal_conv1d_update``; x (B, D, L)."""
    width, length = weight.shape[1], conv_state.shape[2]
    out, allowance = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)
    state = conv_state.clone()
    for b in range(x.shape[0]):
        row = b if conv_state_indices is None else int(conv_state_indices[b])
        if row < 0:
            continue
        position = length if cache_seqlens is None else int(cache_seqlens[b])
        history = torch.stack([conv_state[row, :, (position - i) % length] for i in range(width - 1, 0, -1)], -1)
        whole = causal_conv1d(x[b : b + 1], weight, bias, None, history[None], activation)
        out[b], allowance[b] = (t.detach().squeeze(0) for t in whole["out"])
        if cache_seqlens is None:
            state[row] = torch.cat([conv_state[row], x[b]], -1)[:, -length:]
        for t in range(x.shape[2] if cache_seqlens is not None else 0):
            state[row, :, (position + t) % length] = x[b, :, t]
    return {"out": (out, allowance), "conv_state": (state.double(), torch.zeros_like(state).double())}


# ---- gated delta rule ------------------------------------------------------------------------------------------------


def _delta_normalized(x, perturb):
    return x * perturb((perturb(x * x, x.shape[-1]).sum(-1, keepdim=True) + 1e-6).rsqrt(), FUNCTION_ULPS)


# A kernel that works chunk by chunk sums over the channels of a state and over the tokens of a chunk.
_DELTA_CHUNK = 64


def _delta_sequence(q, k, v, g, beta, state, perturb):
    """(out, state) of a sequence, all (runs, T, H, ...): heads of q and k repeated, q scaled; state (runs, H, K, V)."""
    terms = k.shape[-1] + _DELTA_CHUNK  # of the sums over keys; gradients also sum over values
    if g.dim() == 4:  # decays between two tokens are running products, rounded once a token
        terms += _DELTA_CHUNK
    terms_backward = terms + v.shape[-1]
    out = []
    for t in range(q.shape[1]):
        decay = perturb(g[:, t].exp(), FUNCTION_ULPS + g[:, t].detach().abs())
        state = perturb(state * (decay[..., None, None] if g.dim() == 3 else decay[..., None]))
        key, query = k[:, t, :, :, None], q[:, t, :, :, None]
        seen = perturb(state * key, terms, terms_backward).sum(-2)
        delta = perturb(beta[:, t, :, None] * perturb(v[:, t] - seen))
        state = perturb(state + perturb(key * delta[..., None, :], 1, terms_backward))
        out.append(perturb(state * query, terms, terms_backward).sum(-2))
    return torch.stack(out, 1) if out else torch.zeros_like(v), state


def _delta_unrolled(q, k, v, g, beta, state, perturb):
    """The same for a gate per head, chunk by chunk as a kernel unrolls it (gated_delta_rule/README.md).

    The sums of a token then hold what other tokens of the chunk erase again, grown by the gates in between: where gates
    are positive that is many times the state of the recurrence, and so are the errors.
    """
    outs = []
    for begin in range(0, q.shape[1], _DELTA_CHUNK):
        rows = [x[:, begin : begin + _DELTA_CHUNK] for x in (q, k, v, g, beta)]
        out, state = _delta_unrolled_chunk(*rows, state, perturb)
        outs.append(out)
    return torch.cat(outs, 1), state


def _delta_unrolled_chunk(q, k, v, g, beta, state, perturb):
    terms = k.shape[-1] + _DELTA_CHUNK  # as in the recurrence: of a sum over channels that goes on over tokens
    both = terms, terms + v.shape[-1]
    total, tokens = g.cumsum(1), q.shape[1]

    def decay(exponent):
        return perturb(exponent.exp(), FUNCTION_ULPS + exponent.detach().abs())

    def pairs(rows):  # (runs, i, j, H): decay(j..i) rows_i . k_j
        return perturb(between * perturb(rows[:, :, None] * k[:, None], k.shape[-1]).sum(-1), 2)

    def from_state(rows):
        return perturb(into[..., None] * perturb(rows[..., None] * state[:, None], *both).sum(-2))

    lower = torch.ones(tokens, tokens, dtype=torch.float64).tril()[..., None]
    between = decay((total[:, :, None] - total[:, None]) * lower) * lower
    into, out_of = decay(total), decay(total[:, -1:] - total)
    a, p = pairs(k) * -beta[:, :, None], pairs(q)
    right = perturb(beta[..., None] * perturb(v - from_state(k)))
    d = right[:, :0]
    for i in range(tokens):
        earlier = perturb(a[:, i, :i, :, None] * d, *both).sum(1)
        d = torch.cat([d, perturb(right[:, i] + earlier).unsqueeze(1)], 1)
    out = from_state(q) + perturb(p[..., None] * d[:, None], *both).sum(2)
    written = perturb(k[..., None] * perturb(out_of[..., None] * d).unsqueeze(-2), *both).sum(1)
    return out, perturb(perturb(into[:, -1, :, None, None] * state, *both) + written)


def gated_delta_rule(
    q, k, v, g, beta, *, initial_state=None, cu_seqlens=None, scale=None, l2norm=False, dout=None, dfinal_state=None,
    unrolled=False,
):  # fmt: skip
    """What the gated delta rule must return: ``out``, ``final_state`` and, with ``dout``, the gradient of each input.

    Shapes as in ``chunk_gated_delta_rule``; ``g`` (B, T, HV), or (B, T, HV, K) for a gate per channel (KDA).
    ``unrolled``: allowances of the chunk form where states grow; the values are those of the recurrence.
    """
    perturb = Perturbation()
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    leaves = {name: repeated(x) for name, x in inputs.items()}
    ends = None if cu_seqlens is None else cu_seqlens.tolist()
    count = q.shape[0] if ends is None else len(ends) - 1
    if initial_state is not None:
        leaves["initial_state"] = repeated(initial_state)
    states = leaves.get("initial_state")
    if states is None:  # a leaf: without a token, nothing else has a gradient
        shape = (1 + SAMPLES, count, v.shape[2], q.shape[3], v.shape[3])
        states = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    scaled, keys = (_delta_normalized(leaves[n], perturb) if l2norm else leaves[n] for n in "qk")
    scaled = perturb(scaled * (q.shape[-1] ** -0.5 if scale is None else scale))
    group = v.shape[2] // q.shape[2]
    rows = [x.repeat_interleave(group, 3) for x in (scaled, keys)] + [leaves[n] for n in ("v", "g", "beta")]
    outs, finals = [], []
    for i in range(count):
        of = (slice(None), i) if ends is None else (slice(None), 0, slice(ends[i], ends[i + 1]))
        sequence = _delta_unrolled if unrolled else _delta_sequence
        out, final = sequence(*(x[of] for x in rows), states[:, i], perturb)
        outs.append(out)
        finals.append(final)
    out, final_state = _delta_out(outs, ends, leaves["v"]), torch.stack(finals, 1)
    values = {"out": spread(out, v.dtype, (-2, -1)), "final_state": spread(final_state, torch.float32, (-3, -2, -1))}
    if dout is not None:
        target = (out * dout.double()).sum()
        if dfinal_state is not None:
            target = target + (final_state * dfinal_state.double()).sum()
        gradients = torch.autograd.grad(target, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            dtype = inputs[name].dtype if name in inputs else torch.float32
            pooled = {"g": (0, 1, 2), "beta": (0, 1, 2), "initial_state": (-3, -2, -1)}.get(name, (-2, -1))
            values["d" + name] = spread(gradient, dtype, pooled)
    return values


def _delta_out(outs, ends, v):
    """Outputs of the sequences side by side; rows past the last boundary hold 0."""
    if ends is None:
        return torch.stack(outs, 1)
    slack = v.new_zeros(v.shape[0], v.shape[2] - ends[-1], *v.shape[3:])
    return torch.cat([*outs, slack], 1).unsqueeze(1)


# ---- selective scan --------------------------------------------------------------------------------------------------


def _softplus(x, perturb):
    return perturb(torch.nn.functional.softplus(x), FUNCTION_ULPS + x.detach().clamp_max(0).abs())


def _scan_matrix(matrix, channels):
    """B or C as (runs, B, D or 1, N, L): groups repeated, constant ones for all tokens."""
    if matrix.dim() == 3:
        return matrix[:, None, :, :, None]
    if matrix.dim() == 4:
        return matrix.unsqueeze(2)
    return matrix.repeat_interleave(channels // matrix.shape[2], 2)


def _scan_sequence(x, w, B, C, state, perturb):
    """(sums over C h, state) of a sequence: x = dt A (runs, D, N, n), w = dt u (runs, D, n), state (runs, D, N)."""
    states, channels = x.shape[2], x.shape[1]
    out = []
    for t in range(x.shape[3]):
        decay = perturb(x[..., t].exp(), FUNCTION_ULPS)
        written = perturb(w[..., t, None] * B[..., min(t, B.shape[-1] - 1)], 1, states + channels)
        state = perturb(perturb(decay * state) + written)
        out.append(perturb(state * C[..., min(t, C.shape[-1] - 1)], states, states + channels).sum(-1))
    return torch.stack(out, -1) if out else torch.zeros_like(w), state


def selective_scan(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, *, seq_idx=None, initial_states=None,
    count=None, dout=None, dlast_state=None,
):  # fmt: skip
    """What the selective scan must return: ``out``, ``last_state`` and, with ``dout``, the gradient of each input.

    Shapes as in ``selective_scan_fn``; ``count``: rows of the last states where ``seq_idx`` is given.
    """
    perturb = Perturbation()
    inputs = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias,
              "initial_states": initial_states}  # fmt: skip
    inputs = {name: x for name, x in inputs.items() if x is not None}
    leaves = {name: repeated(x) for name, x in inputs.items()}
    batch, channels, seqlen = u.shape
    tokens, states = batch * seqlen, A.shape[1]
    dt = leaves["delta"]
    if delta_bias is not None:
        dt = perturb(dt + leaves["delta_bias"][:, None, :, None], 1, tokens)
    dt = _softplus(dt, perturb) if delta_softplus else dt
    x = perturb(dt[:, :, :, None] * leaves["A"][:, None, :, :, None], 2, states + tokens)
    w = perturb(dt * leaves["u"], 1, states)
    matrices = [_scan_matrix(leaves[name], channels) for name in "BC"]
    sequences = conv_sequences(batch, seqlen, seq_idx)
    count = batch if seq_idx is None else count
    last = list(leaves["initial_states"].unbind(1)) if initial_states is not None else None
    last = last or [torch.zeros(1 + SAMPLES, channels, states, dtype=torch.float64) for _ in range(count or 0)]
    zero = torch.zeros(1 + SAMPLES, channels, states, dtype=torch.float64)
    scanned = torch.zeros_like(leaves["u"])
    for s in sequences:
        span = (slice(None), s.batch, slice(None), slice(s.begin, s.end))
        rows = [m[:, min(s.batch, m.shape[1] - 1)] for m in matrices]
        rows = [m if m.shape[-1] == 1 else m[..., s.begin : s.end] for m in rows]
        begin = last[s.state] if last else zero
        scanned[span], end = _scan_sequence(x[:, s.batch, ..., s.begin : s.end], w[span], *rows, begin, perturb)
        if last:
            last[s.state] = end
    out = scanned
    if D is not None:
        inside = torch.zeros(batch, 1, seqlen, dtype=torch.float64)
        for s in sequences:
            inside[s.batch, :, s.begin : s.end] = 1
        skip = perturb(leaves["D"][:, None, :, None] * leaves["u"], 1, tokens)
        out = perturb(out + skip * inside)
    if z is not None:
        gate = perturb(leaves["z"].sigmoid(), FUNCTION_ULPS + leaves["z"].detach().abs())
        out = perturb(out * perturb(leaves["z"] * gate))
    last_state = torch.stack(last, 1) if last else zero[:, None][:, :0]
    values = {"out": spread(out, u.dtype, (-2, -1)), "last_state": spread(last_state, torch.float32, (-3, -2, -1))}
    if dout is not None:
        target = (out * dout.double()).sum()
        if dlast_state is not None:
            target = target + (last_state * dlast_state.double()).sum()
        gradients = torch.autograd.grad(target, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            pooled = tuple(range(-min(gradient.dim() - 1, 2), 0))
            values["d" + name] = spread(gradient, inputs[name].dtype, pooled)
    return values


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    """``out`` and ``state`` after one token, as in ``selective_state_update``."""
    perturb, out_dtype = Perturbation(), x.dtype
    state64, x, dt, A, B, C = (repeated(t).detach() for t in (state, x, dt, A, B, C))
    dtype = state.dtype
    if dt_bias is not None:
        dt = perturb(dt + repeated(dt_bias).detach()[:, None])
    dt = _softplus(dt, perturb) if dt_softplus else dt
    if x.dim() == 4:  # groups serve several heads
        B, C = (m.repeat_interleave(x.shape[2] // m.shape[2], 2) for m in (B, C))
    decay = perturb(perturb(dt[..., None] * A[:, None], 2).exp(), FUNCTION_ULPS)
    state64 = perturb(perturb(decay * state64) + perturb(perturb(dt * x)[..., None] * B[..., None, :]))
    out = perturb(state64 * C[..., None, :], state64.shape[-1]).sum(-1)
    if D is not None:
        out = perturb(out + perturb(repeated(D).detach()[:, None] * x))
    if z is not None:
        gates = repeated(z).detach()
        out = perturb(out * perturb(gates * perturb(gates.sigmoid(), FUNCTION_ULPS + gates.abs())))
    return {"out": spread(out, out_dtype, (-1,)), "state": spread(state64, dtype, (-1,))}
