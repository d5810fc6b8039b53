"""Float64 oracles, written from the formulas and nothing else; gradients come from autograd through them.

Every oracle returns a dict ``name -> (wanted, allowance)`` that goes into ``tolerance.assert_close``. A section an op.
"""

from typing import NamedTuple

import attention_allowance
import torch

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
    leaves = list(wide)
    if options.sinks is not None:
        leaves.append(options.sinks.detach().cpu().double().requires_grad_())
        options = options._replace(sinks=leaves[-1])
    if mask is not None and mask.dtype != torch.bool:
        leaves.append(mask.detach().cpu().double().requires_grad_())
        mask = leaves[-1]
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
    allowances = attention_allowance.of(sequences, spans, options, values, douts, dlses, q.dtype, k.shape[-2])
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
