"""Brings the sample boundaries of a packed batch to the layers that need them, and refuses a batch where it cannot.

A packed batch holds several samples in one row, and nothing but its keywords says where they end. A layer that does
not get them computes one long sample, without an error. So each batch of a wired model is read at its entrance
(`enter`) and remembered until the forward ends, one stack a thread:

- `refusals` judges it by the keywords its layers read; values are looked at only when those leave the question open.
- A layer that gets no boundaries takes them from there (`sequence_index`, `sequence_ends`): Mamba, Jamba and others
  drop the keywords on the way. Attention without its own raises (`require_attention`).
- A layer that gradient checkpointing recomputes runs in the backward, when the forward is over and another batch may
  have come: transformers' checkpointing function is wrapped to bring its own batch back (`_Recomputed`), and a
  recomputation by anybody else's is refused (`require_batch`).

Under ``torch.compile`` the entrance is traced as well: layers get their boundaries, nothing is checked.
"""

import functools
import threading
from collections.abc import Mapping
from typing import NamedTuple, Optional

import torch

from .batch import ATTENTION_KEYWORDS, Batch
from .refusals import Plan, fault

_threads = threading.local()


class Entrance(NamedTuple):
    """A module whose forward pre-hook is `enter`: the wired model, or its base model inside it."""

    plan: Plan
    parameters: tuple
    is_model: bool


def enter(entrance: Entrance, module, args: tuple, kwargs: dict) -> None:
    """Remember the batch, and refuse it if a layer would mix its samples."""
    arguments = {**dict(zip(entrance.parameters, args)), **kwargs}
    plan, stack, compiling = entrance.plan, _stack(), torch.compiler.is_compiling()
    batch = None
    if arguments.get("cache") is None:  # continuous batching brings its own bounds with it
        cached = arguments.get("use_cache")
        batch = Batch(arguments, getattr(module.config, "use_cache", False) if cached is None else cached)
    if entrance.is_model:
        while stack and stack[-1][0] is plan:  # left behind by an interrupted forward
            stack.pop()
    elif stack and stack[-1][0] is plan and (compiling or _same_tokens(stack[-1][1], batch)):
        stack.append(stack[-1])  # the model calls its base model, and has not told it all it knows
        return
    stack.append((plan, batch))
    if compiling:
        return
    plan.hold()
    if module.training and torch.is_grad_enabled():
        _bind_recomputation(plan)
    if batch is not None:
        plan.last_seen = _in_words(batch)
        text = fault(plan, batch, module.config._attn_implementation) if plan.check else None
        if text is not None:
            raise ValueError(text)


def leave(plan: Plan, *_) -> None:
    """Forward hook of a wired model and of its base model; runs after an error too."""
    stack = _stack()
    if stack and stack[-1][0] is plan:
        stack.pop()


def _stack() -> list:
    if not hasattr(_threads, "stack"):
        _threads.stack = []
    return _threads.stack


def _same_tokens(outer: Optional[Batch], inner: Optional[Batch]) -> bool:
    return (outer is None) == (inner is None) and (outer is None or outer.tokens is inner.tokens)


def _in_words(batch: Batch) -> str:
    """Names of the keywords, without keeping their tensors alive."""
    words = []
    for name, value in batch.arguments.items():
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else value if isinstance(value, int) else "..."
        words.append(f"{name} {shape}")
    return f"tokens {batch.size}" + "".join(f", {word}" for word in words)


# ---- what layers ask -------------------------------------------------------------------------------------------------


def sequence_index(layer: str, size: tuple[int, int], seq_idx, cu_seq_lens) -> Optional[torch.Tensor]:
    """``seq_idx`` of a layer's tokens ``size`` ``(B, L)``: as given, else from ``cu_seq_lens`` ``(N + 1,)``; without
    both as the model was called; else None.

    Raises:
        ValueError: the batch is packed and its boundaries are not those of these tokens: ``cu_seq_lens`` does not end
            at their number, or the model both drops them and puts cached columns before them.
    """
    if seq_idx is None and cu_seq_lens is None:
        seq_idx, cu_seq_lens = _carried(layer, size)
    if seq_idx is not None or cu_seq_lens is None:
        return seq_idx
    rows, length = size
    _require_all_tokens(layer, cu_seq_lens, rows * length)
    tokens = torch.arange(rows * length, device=cu_seq_lens.device, dtype=cu_seq_lens.dtype)
    return torch.bucketize(tokens, cu_seq_lens[1:], right=True, out_int32=True).view(rows, length)


def sequence_ends(layer: str, size: tuple[int, int], cu_seqlens, seq_idx) -> Optional[torch.Tensor]:
    """``cu_seqlens`` ``(N + 1,)`` of a layer's tokens ``size`` ``(B, T)``, its rows one after the other: as given, else
    where ``seq_idx`` ``(B, T)`` changes and where a row begins; without both as the model was called; else None.

    Raises:
        ValueError: as `sequence_index`.
    """
    rows, length = size
    if seq_idx is None and cu_seqlens is None:
        seq_idx, cu_seqlens = _carried(layer, size)
    if cu_seqlens is not None:
        _require_all_tokens(layer, cu_seqlens, rows * length)
        return cu_seqlens
    if seq_idx is None:
        return None
    begins = torch.ones((rows, length), dtype=torch.bool, device=seq_idx.device)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = begins.reshape(-1).nonzero()[:, 0].to(torch.int32)
    return torch.cat([first, first.new_full((1,), rows * length)])


def _carried(layer: str, size: tuple[int, int]) -> tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """``seq_idx`` and ``cu_seq_lens_q`` of the batch that is being computed, for a layer that got neither."""
    stack = _stack()
    if not stack or stack[-1][1] is None:
        return None, None
    plan, batch = stack[-1]
    found, compiling = batch.boundaries(), torch.compiler.is_compiling()
    if compiling or batch.size == tuple(size):  # compared in a graph, the numbers would become constants of it
        plan.carried = plan.carried or any(each is not None for each in found)
        return found
    if plan.check and batch.sign:
        raise ValueError(
            f"{plan.model}: {batch.sign}, but {layer} gets {tuple(size)} tokens where the model got {batch.size}, "
            "so that boundaries do not fit. Pass use_cache=False"
        )
    return None, None


def without_mask() -> bool:
    """Whether the batch that is being computed is known to have come without an ``attention_mask``."""
    stack = _stack()
    return bool(stack) and stack[-1][1] is not None and not stack[-1][1].has("attention_mask")


def is_cached(state: torch.Tensor) -> bool:
    """Whether ``state`` is a recurrent state in the cache of the model that is being computed."""
    stack = _stack()
    return bool(stack) and stack[-1][1] is not None and id(state) in stack[-1][1].states


def _require_all_tokens(layer: str, cu_seqlens: torch.Tensor, tokens: int) -> None:
    if not torch.compiler.is_compiling() and int(cu_seqlens[-1]) != tokens:
        raise ValueError(
            f"{layer}: cu_seq_lens_q must end at the number of tokens ({tokens}), got {int(cu_seqlens[-1])}"
        )


def require_attention(query: torch.Tensor, attention_mask, arguments: Mapping) -> None:
    """Raise if ``query`` ``(B, H, L, D)`` belongs to a packed batch and its layer got no boundaries."""
    if attention_mask is None:
        if all(arguments.get(name) is not None for name in ATTENTION_KEYWORDS):
            return
        if arguments.get("position_ids") is not None and query.shape[0] == 1:
            return
    stack = _stack()
    if torch.compiler.is_compiling() or not stack or stack[-1][1] is None or not stack[-1][0].check:
        return
    plan, batch = stack[-1]
    if batch.size == (query.shape[0], query.shape[2]) and batch.sign:
        raise ValueError(
            f"{plan.model}: {batch.sign}, but the model drops its boundary keywords on the way to attention, which "
            "would mix the samples. Pass one sample a row with an attention_mask"
        )


# ---- recomputation ---------------------------------------------------------------------------------------------------


class _Recomputed:
    """transformers' checkpointing function; what it recomputes finds the batch of the forward it belongs to."""

    def __init__(self, function):
        self.function = function

    def __call__(self, block, *args, **kwargs):
        stack = _stack()
        if not stack or torch.compiler.is_compiling():  # a compiled graph recomputes itself, inputs and all
            return self.function(block, *args, **kwargs)
        return self.function(functools.partial(_run_with, stack[-1], block), *args, **kwargs)


def _run_with(entry: tuple, block, *args, **kwargs):
    stack = _stack()
    stack.append(entry)
    try:
        return block(*args, **kwargs)
    finally:
        stack.pop()


def _bind_recomputation(plan: Plan) -> None:
    """Wrap the checkpointing function of each block that has one now."""
    for reference in plan.blocks:
        block = reference()
        function = getattr(block, "_gradient_checkpointing_func", None)
        if function is not None and not isinstance(function, _Recomputed):
            block._gradient_checkpointing_func = _Recomputed(function)


def release_recomputation(plan: Plan) -> None:
    """Undo `_bind_recomputation`."""
    for reference in plan.blocks:
        block = reference()
        function = getattr(block, "_gradient_checkpointing_func", None)
        if isinstance(function, _Recomputed):
            block._gradient_checkpointing_func = function.function


def require_batch(plan: Plan, *_) -> None:
    """Forward pre-hook of a mixer whose model drops boundaries: raise if it runs where they are not at hand."""
    if not plan.carried or torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
        return
    stack = _stack()
    if not stack or stack[-1][0] is not plan:
        raise ValueError(
            f"{plan.model}: a layer is recomputed in the backward, where the boundaries of its packed batch are lost: "
            "the model drops them on the way. Checkpoint with model.gradient_checkpointing_enable()"
        )
