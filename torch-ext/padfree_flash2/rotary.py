"""Rotary position embedding: the functions of flash-attn's ``layers.rotary``, in plain torch.

At position p a pair (a, b) of a head's elements, the i-th, turns by the angle whose cosine and sine the tables hold::

    a' = a * cos[p, i] - b * sin[p, i]
    b' = a * sin[p, i] + b * cos[p, i]

The pairs are (2 i, 2 i + 1) where ``interleaved`` (GPT-J), else (i, i + rotary_dim / 2) (GPT-NeoX); elements from
rotary_dim on stay. Arithmetic is in float32, rounded once. All is differentiable, also what is turned in place: use
either the tensor that was given or the one returned, they are the same.
"""

from typing import Any, Optional, Union

import torch

from . import _checks as checks

__all__ = [
    "RotaryEmbedding",
    "apply_rotary",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]

OP = "rotary"

Offsets = Union[int, torch.Tensor]


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Optional[torch.Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> torch.Tensor:
    """x turned by its tokens' positions, which count from 0 in each sequence.

    Args:
        x: (batch, seqlen, heads, head_dim), or with cu_seqlens (total, heads, head_dim); float32, bfloat16 or float16,
            any strides.
        cos: (positions, rotary_dim / 2), any of the three dtypes; rotary_dim is at most head_dim.
        sin: the same.
        interleaved: which elements make a pair; see the top of this module.
        inplace: turn x itself, rather than a copy.
        seqlen_offsets: an int or (batch,) int32 or int64: added to the positions of a sequence, as for a KV cache.
        cu_seqlens: (sequences + 1,) int32 or int64: where each sequence of a pack begins. Rows past the last end stay.
        max_seqlen: upper bound of the lengths; not needed.

    Returns:
        A tensor like x; x itself where ``inplace``.

    Raises:
        TypeError: a tensor has the wrong type, dtype or device.
        ValueError: a shape or a value is wrong, or a position has no row in cos.

    Source: flash-attn 2.8, ``apply_rotary_emb``.
    """
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Optional[torch.Tensor] = None,
    max_seqlen: Optional[int] = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """``apply_rotary_emb`` in the order of arguments of flash-attn's kernel; ``conjugate`` turns the other way.

    Source: flash-attn 2.8, ``flash_attn.ops.triton.rotary.apply_rotary``.
    """
    for name, value in (("interleaved", interleaved), ("inplace", inplace), ("conjugate", conjugate)):
        checks.require_bool(OP, name, value)
    _check_tables(x, cos, sin, 4 if cu_seqlens is None else 3)
    if cu_seqlens is None:
        positions, slack = _positions(x, seqlen_offsets, max_seqlen, cos.shape[0]), None
    else:
        positions, slack = _packed_positions(x, seqlen_offsets, cu_seqlens, max_seqlen, cos.shape[0])
    cos, sin = cos[positions], sin[positions]
    turned = rotate(x, cos, -sin if conjugate else sin, interleaved)
    if slack is not None:
        turned = torch.where(slack[:, None, None], x, turned)
    if not inplace:
        return turned
    checks.require_distinct_elements(OP, "x", x)
    return x.copy_(turned)


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cos_k: Optional[torch.Tensor] = None,
    sin_k: Optional[torch.Tensor] = None,
    interleaved: bool = False,
    seqlen_offsets: Offsets = 0,
    num_heads_q: Optional[int] = None,
) -> torch.Tensor:
    """``apply_rotary_emb`` in place, to the q and the k that lie stacked in one tensor.

    Args:
        qkv: (batch, seqlen, 3, heads, head_dim), or (batch, seqlen, heads_q + 2 heads_kv, head_dim) with num_heads_q.
        cos, sin, interleaved, seqlen_offsets: as in ``apply_rotary_emb``.
        cos_k, sin_k: tables for k; those of q by default.
        num_heads_q: the heads of q where all heads lie side by side.

    Returns:
        qkv.

    Raises:
        TypeError, ValueError: as ``apply_rotary_emb``.

    Source: flash-attn 2.8, ``apply_rotary_emb_qkv_``.
    """
    q, k = _queries_and_keys(qkv, num_heads_q)
    tables_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    _turn_both(q, (cos, sin), k, tables_k, interleaved, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(
    kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, seqlen_offsets: Offsets = 0
) -> torch.Tensor:
    """``apply_rotary_emb`` in place, to the k of kv (batch, seqlen, 2, heads, head_dim). Returns kv.

    Source: flash-attn 2.8, ``apply_rotary_emb_kv_``.
    """
    apply_rotary(_keys(kv), cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
    return kv


def apply_rotary_emb_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """``apply_rotary_emb`` of whole rows: a row of cos (seqlen, rotary_dim / 2) or (batch, seqlen, ...) for each token.

    Source: flash-attn 2.8, ``apply_rotary_emb_torch``.
    """
    checks.require_bool(OP, "interleaved", interleaved)
    batched = isinstance(cos, torch.Tensor) and cos.dim() == 3
    _check_tables(x, cos, sin, 4, 3 if batched else 2)
    for dim, size in enumerate(x.shape[:2] if batched else x.shape[1:2]):
        checks.require_size(OP, "cos", cos, dim, size)
    return rotate(x, cos, sin, interleaved)


def rotate_half(x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Each pair (a, b) of the last dimension as (-b, a): x turned by a right angle.

    Raises:
        TypeError: x is no tensor.
        ValueError: its last dimension is odd, or it has none.

    Source: flash-attn 2.8, ``rotate_half``.
    """
    checks.require_tensor(OP, "x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"{OP}: x must have an even last dimension, got shape {tuple(x.shape)}")
    first, second = _pairs(x, interleaved)
    return _joined(-second, first, interleaved)


class RotaryEmbedding(torch.nn.Module):
    """Rotary embedding with tables of its own, made as they are needed: cos and sin of ``p * base ** (-2 i / dim)``.

    Args:
        dim: rotary_dim.
        base: of the frequencies.
        interleaved: which elements make a pair; see the top of this module.
        scale_base: XPos: q is multiplied by ``s ** ((p - seqlen // 2) / scale_base)``, k divided by it, with
            ``s = (2 i + 0.4 dim) / (1.4 dim)``; seqlen is that of the longest call. None: no scale.
        device: of the buffers.

    Source: flash-attn 2.8, ``RotaryEmbedding``; Su et al. 2104.09864, Sun et al. 2212.10554. The names of its buffers
    and of the tables are kept, for classes that derive from it.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: Optional[float] = None,
        device: Any = None,
    ):
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None if scale_base is None else self._compute_scale(device), persistent=False)
        self._seq_len_cached = 0
        self._cos_cached = self._sin_cached = self._cos_k_cached = self._sin_k_cached = None

    def _compute_inv_freq(self, device: Any = None) -> torch.Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)

    def _compute_scale(self, device: Any = None) -> torch.Tensor:
        return (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) + 0.4 * self.dim) / (1.4 * self.dim)

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        """Tables of ``seqlen`` rows or more, of a dtype and device; computed in float32 whatever the buffers became."""
        ready = self._cos_cached
        if ready is not None and seqlen <= self._seq_len_cached and (ready.device, ready.dtype) == (device, dtype):
            return
        with torch.inference_mode(False):  # inference tensors cannot be saved for a backward, and tables stay
            self._make_tables(seqlen, device, dtype)
        self._seq_len_cached = seqlen

    def _make_tables(self, seqlen: int, device: Any, dtype: Optional[torch.dtype]) -> None:
        positions = torch.arange(seqlen, device=device, dtype=torch.float32)
        exact = self.inv_freq.dtype == torch.float32  # not after module.to(torch.bfloat16)
        angles = torch.outer(positions, self.inv_freq.to(device) if exact else self._compute_inv_freq(device))
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self.scale.to(device) if exact else self._compute_scale(device)
        scale = scale ** ((positions - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: torch.Tensor,
        kv: Optional[torch.Tensor] = None,
        seqlen_offset: Offsets = 0,
        max_seqlen: Optional[int] = None,
        num_heads_q: Optional[int] = None,
    ) -> Any:
        """q and k turned in place.

        Args:
            qkv: as ``apply_rotary_emb_qkv_`` takes it; with kv given q alone, (batch, seqlen, heads, head_dim).
            kv: (batch, seqlen, 2, heads, head_dim).
            seqlen_offset: an int or (batch,) integers, added to the positions.
            max_seqlen: rows that the tables shall have; with an int seqlen_offset found by itself.
            num_heads_q: as ``apply_rotary_emb_qkv_`` takes it.

        Returns:
            qkv, or the tuple (q, kv).

        Raises:
            TypeError, ValueError: as ``apply_rotary_emb``; a tensor seqlen_offset before any max_seqlen.
        """
        checks.require_floating(OP, "qkv", qkv)
        if qkv.dim() not in (4, 5):
            raise ValueError(f"{OP}: qkv must have 4 or 5 dimensions, got {qkv.dim()}")
        if max_seqlen is None and checks.is_int(seqlen_offset):
            max_seqlen = qkv.shape[1] + max(seqlen_offset, 0)
        if max_seqlen is not None:
            checks.require_int(OP, "max_seqlen", max_seqlen, least=0)
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif self._cos_cached is None:
            raise ValueError(f"{OP}: max_seqlen must be given with a tensor seqlen_offset, got None")
        cos, sin = self._cos_cached, self._sin_cached
        cos_k, sin_k = (cos, sin) if self.scale is None else (self._cos_k_cached, self._sin_k_cached)
        how = {"interleaved": self.interleaved, "seqlen_offsets": seqlen_offset}
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, num_heads_q=num_heads_q, **how)
        _turn_both(qkv, (cos, sin), _keys(kv), (cos_k, sin_k), **how)
        return qkv, kv


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x (..., seqlen, heads, head_dim) turned by rows (..., seqlen, rotary_dim / 2) of the tables; unchecked."""
    half = cos.shape[-1]
    cos, sin = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    first, second = _pairs(x[..., : 2 * half].float(), interleaved)
    parts = first * cos - second * sin, first * sin + second * cos
    turned = _joined(*(part.to(x.dtype) for part in parts), interleaved)
    return turned if 2 * half == x.shape[-1] else torch.cat([turned, x[..., 2 * half :]], -1)


def _pairs(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, ...]:
    return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, -1)


def _joined(first: torch.Tensor, second: torch.Tensor, interleaved: bool) -> torch.Tensor:
    return torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)


def _turn_both(
    q: torch.Tensor,
    tables_q: tuple[Any, Any],
    k: torch.Tensor,
    tables_k: tuple[Any, Any],
    interleaved: bool,
    seqlen_offsets: Offsets,
) -> None:
    """q and k in place; both are turned aside first, so that what is refused changes neither."""
    turned = []
    for part, (cos, sin) in ((q, tables_q), (k, tables_k)):
        turned.append(apply_rotary(part, cos, sin, seqlen_offsets, interleaved=interleaved))
        checks.require_distinct_elements(OP, "x", part)
    for part, values in zip((q, k), turned):
        part.copy_(values)


def _keys(kv: Any) -> torch.Tensor:
    checks.require_floating(OP, "kv", kv)
    checks.require_dim(OP, "kv", kv, 5)
    checks.require_size(OP, "kv", kv, 2, 2)
    return kv[:, :, 0]


def _queries_and_keys(qkv: Any, num_heads_q: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of q and k, each (batch, seqlen, heads, head_dim)."""
    checks.require_floating(OP, "qkv", qkv)
    if qkv.dim() == 5:
        checks.require_size(OP, "qkv", qkv, 2, 3)
        return qkv[:, :, 0], qkv[:, :, 1]
    heads_q, heads_kv = checks.heads_of(OP, qkv, num_heads_q)
    return qkv[:, :, :heads_q], qkv[:, :, heads_q : heads_q + heads_kv]


def _check_tables(x: Any, cos: Any, sin: Any, dims: int, dims_table: int = 2) -> None:
    checks.require_floating(OP, "x", x)
    checks.require_dim(OP, "x", x, dims)
    for name, table in (("cos", cos), ("sin", sin)):
        checks.require_floating(OP, name, table)
        checks.require_device(OP, name, table, "x", x)
        checks.require_dim(OP, name, table, dims_table)
    for dim in range(dims_table):
        checks.require_size(OP, "sin", sin, dim, cos.shape[dim])
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(f"{OP}: cos must be at most head_dim / 2 ({x.shape[-1] // 2}) wide, got {cos.shape[-1]}")


def _positions(x: torch.Tensor, offsets: Any, max_seqlen: Any, rows: int) -> Union[slice, torch.Tensor]:
    """Rows of the tables, those of all sequences or (batch, seqlen)."""
    seqlen = x.shape[1]
    _check_bound(max_seqlen, seqlen)
    if checks.is_int(offsets):
        _check_rows([offsets], [seqlen], rows)
        return slice(offsets, offsets + seqlen)
    offsets = _offsets(offsets, x, x.shape[0])
    starts = checks.values_of(offsets)
    if starts is not None:
        _check_rows(starts, [seqlen] * len(starts), rows)
    return offsets.long()[:, None] + torch.arange(seqlen, device=x.device)


def _packed_positions(
    x: torch.Tensor, offsets: Any, cu_seqlens: torch.Tensor, max_seqlen: Any, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the tables, (total,), and which rows of x lie past the last end."""
    checks.require_boundaries(OP, cu_seqlens, "x", x, 1, x.shape[0])
    sequences, ends = cu_seqlens.shape[0] - 1, checks.values_of(cu_seqlens)
    if checks.is_int(offsets):
        offsets = torch.full((sequences,), offsets, device=x.device)
    offsets = _offsets(offsets, x, sequences)
    if ends is not None:
        lengths = [end - start for start, end in zip(ends, ends[1:])]
        _check_bound(max_seqlen, max(lengths, default=0))
        starts = checks.values_of(offsets)
        if starts is not None:
            _check_rows(starts, lengths, rows)
    steps = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu_seqlens[1:].long().contiguous(), steps, right=True)
    slack = sequence == sequences
    first = offsets.long() - cu_seqlens[:-1]
    return (steps + torch.cat([first, -cu_seqlens[-1:].long()])[sequence]).masked_fill(slack, 0), slack


def _offsets(offsets: Any, x: torch.Tensor, sequences: int) -> torch.Tensor:
    if not isinstance(offsets, torch.Tensor):
        raise TypeError(f"{OP}: seqlen_offsets must be an int or a tensor, got {type(offsets).__name__}")
    checks.require_integers(OP, "seqlen_offsets", offsets, "x", x)
    checks.require_size(OP, "seqlen_offsets", offsets, 0, sequences)
    return offsets


def _check_bound(max_seqlen: Any, longest: int) -> None:
    if max_seqlen is None:
        return
    checks.require_int(OP, "max_seqlen", max_seqlen)
    if max_seqlen < longest:
        raise ValueError(f"{OP}: max_seqlen must be at least the longest sequence ({longest}), got {max_seqlen}")


def _check_rows(starts: list, lengths: list, rows: int) -> None:
    """Each position has a row in the tables."""
    for start, length in zip(starts, lengths):
        if start < 0:
            raise ValueError(f"{OP}: seqlen_offsets must be 0 or more, got {start}")
        if length and start + length > rows:
            raise ValueError(f"{OP}: cos must have {start + length} rows or more, got {rows}")
