"""Rounding-error analysis of attention, forward and backward: the allowance of every output element.

Notation: u is float32's unit roundoff, gamma(n) as in tolerance.py, p the softmax weights, s the scores, m their
maximum. The order of summation is free (blocks, threads), so only counts of terms enter. To first order:

    s       off by gamma(D + 3) * scale * sum |q||k|, plus the roundings of softcap, ALiBi and of s - m
    p       relative E = that, plus one exp, and weights below 2**-126 may become 0; the backward recomputes p from the
            lse and adds the lse's own error
    out     sum_j p |v| (E + mean E + gamma(2 Sk)), the 2 for the rescaling of earlier blocks; then one rounding
    delta   sum_d |dout| * (allowance of out) + gamma(Dv) sum |dout||out|: the kernel may read out as it was stored
    dS      p (E |dP - delta + dlse| + error of dP + error of delta), and the same again through softcap's derivative
    dq, dk  the error of dS carried through |k|, |q|, plus gamma(terms) of the sum itself; dv likewise from p and dout
"""

import torch
from tolerance import FUNCTION_ULPS, gamma, rounded, unit_roundoff

U = unit_roundoff(torch.float32)
SMALLEST_WEIGHT = torch.finfo(torch.float32).tiny


def of(sequences, spans, options, values, douts, dlses, dtype, stored, heads_kv):
    """Allowances of ``values`` (same names and shapes), from the oracle's per-sequence intermediates.

    ``dtype`` is that of q, k and v; ``stored`` names the dtypes of dsinks and dmask.
    """
    parts = {name: torch.zeros_like(value) for name, value in values.items()}
    dk, dv, dq, dsinks, dmask = (parts.get(name) for name in ("dk", "dv", "dq", "dsinks", "dmask"))
    for index, (sequence, (rows, keys)) in enumerate(zip(sequences, spans, strict=True)):
        forward = _forward(sequence, options)
        out = rounded(sequence.out.detach(), forward["out"], dtype)
        parts["out"][rows] = out.transpose(0, 1)
        parts["lse"][rows] = rounded(_finite(sequence.lse), forward["lse"], torch.float32).transpose(0, 1)
        if dq is None:
            continue
        backward = _backward(
            sequence, options, forward, out, douts[rows].transpose(0, 1), dlses[rows].transpose(0, 1), heads_kv
        )
        _flat(dq)[rows] = backward["dq"].transpose(0, 1)
        _flat(dk)[keys] = backward["dk"].transpose(0, 1)
        _flat(dv)[keys] = backward["dv"].transpose(0, 1)
        if dsinks is not None:
            dsinks += backward["dsinks"]
        if dmask is not None:
            place = dmask[index if dmask.shape[0] > 1 else 0]
            terms = len(spans) * backward["ds"].numel() // dmask.numel()
            place += _mask_error(backward, terms, stored["dmask"]).sum_to_size(place.shape)
    if dmask is not None:
        parts["dmask"] = rounded(values["dmask"], dmask, stored["dmask"])
    for name in set(parts) & {"dq", "dk", "dv"}:
        parts[name] = rounded(values[name], parts[name], dtype)
    if dsinks is not None:
        total_rows = values["lse"].shape[0]
        parts["dsinks"] = rounded(values["dsinks"], dsinks * (1 + gamma(total_rows)), stored["dsinks"])
    return parts


def _mask_error(backward, terms, dtype):
    """Error of one element of dS in dmask, which where the mask is broadcast is a sum of stored values."""
    storage = 0.0 if terms == 1 else unit_roundoff(dtype)
    return backward["ds_error"] + (gamma(terms) + storage) * backward["ds"]


def _flat(tensor):
    return tensor.flatten(0, 1) if tensor.dim() == 4 else tensor


def _finite(tensor):
    return torch.where(tensor.isfinite(), tensor, 0.0).detach()


def _score_error(s, options):
    """Absolute error of every score that the kernel hands to exp, without the subtraction of the maximum."""
    magnitude = abs(options.softmax_scale) * (s.q.abs() @ s.k.abs().transpose(-1, -2))
    error = gamma(s.q.shape[-1] + 3) * magnitude
    if options.softcap > 0:
        error = error + FUNCTION_ULPS * U * options.softcap
    bias = (s.scores - s.raw).abs() if options.softcap == 0 else torch.zeros_like(s.raw)
    return (error + 2 * U * (s.scores.abs() + bias)).detach()


def _forward(s, options):
    score_error = _score_error(s, options)
    peak = _finite(s.lse).abs().unsqueeze(-1)
    relative = torch.expm1(score_error + 4 * U * (s.scores.detach().abs() + peak) + FUNCTION_ULPS * U)
    weights = s.weights.detach()
    weights_error = weights * relative + SMALLEST_WEIGHT
    mean = weights_error.sum(-1, keepdim=True)
    if options.sinks is not None:
        mean = mean + FUNCTION_ULPS * U * (1 + _finite(options.sinks).abs()[:, None, None])
    growth = gamma(2 * s.k.shape[1] + FUNCTION_ULPS)
    out = (s.keep * (weights_error + weights * (mean + growth))) @ s.v.detach().abs()
    lse = (mean.squeeze(-1) + growth + 4 * U * (1 + peak.squeeze(-1))) * s.lse.isfinite()
    return {"score": score_error, "relative": relative, "out": out, "lse": lse}


def _backward(s, options, forward, out_allowance, dout, dlse, heads_kv):
    q, k, v = s.q.detach(), s.k.detach(), s.v.detach()
    weights, keep = s.weights.detach(), s.keep
    dp = keep * (dout @ v.transpose(-1, -2))
    dp_error = keep * gamma(v.shape[-1] + 1) * (dout.abs() @ v.abs().transpose(-1, -2))
    delta = (dout * s.out.detach()).sum(-1, keepdim=True)
    stored = (dout.abs() * s.out.detach().abs()).sum(-1, keepdim=True)
    delta_error = (dout.abs() * out_allowance).sum(-1, keepdim=True) + gamma(v.shape[-1]) * stored
    slope = dlse.unsqueeze(-1)
    lse_error = (forward["lse"] + 4 * U * _finite(s.lse).abs()).unsqueeze(-1)
    weights_error = weights * (forward["relative"] + lse_error) + SMALLEST_WEIGHT * s.visible
    inner = (dp - delta + slope).abs()
    inner_error = dp_error + delta_error + 3 * U * (dp.abs() + delta.abs() + slope.abs())
    ds = weights * inner
    ds_error = weights_error * inner + weights * inner_error
    result = {"ds": ds, "ds_error": ds_error}
    if options.softcap > 0:
        ds_error = ds_error + ds * (2 * forward["score"] / options.softcap + 2 * FUNCTION_ULPS * U)
    group = q.shape[0] // heads_kv
    terms_q, terms_k = gamma(k.shape[1] + 3), gamma(q.shape[1] * group + 3)
    result["dq"] = abs(options.softmax_scale) * ((ds_error + terms_q * ds) @ k.abs())
    result["dk"] = abs(options.softmax_scale) * ((ds_error + terms_k * ds).transpose(-1, -2) @ q.abs())
    result["dv"] = (keep * (weights_error + terms_k * weights)).transpose(-1, -2) @ dout.abs()
    for name in ("dk", "dv"):
        result[name] = result[name].unflatten(0, (heads_kv, group)).sum(1)
    if options.sinks is not None:
        sink = torch.where(s.lse.isfinite(), torch.exp(options.sinks.detach()[:, None] - _finite(s.lse)), 0.0)
        sink_inner = (delta - slope).abs().squeeze(-1)
        sink_error = (lse_error.squeeze(-1) + FUNCTION_ULPS * U + gamma(q.shape[1])) * sink_inner
        result["dsinks"] = (sink * (sink_error + delta_error.squeeze(-1))).sum(-1)
    return result
