"""Judges a batch at a model's entrance: which layer would mix its samples, and what to pass instead."""

import weakref
from collections.abc import Callable
from typing import Optional

from .batch import ATTENTION_KEYWORDS, Batch

_COLLATOR = "DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)"


class Plan:
    """What one wired model needs: filled by `wiring.enable`, read at every batch.

    Attributes:
        model: class name, for messages.
        check: whether a batch that a layer would mix is refused.
        attention: whether the model has attention layers.
        attention_id: the name under which attention is this bundle's; under another one transformers makes masks.
        sequence: names of the wired functions that read ``seq_idx`` or ``cu_seq_lens_q``.
        own_code: whether the model mixes tokens in code of its own, which cannot keep samples apart.
        blocks: weak references to the modules transformers may recompute.
        carried: whether a layer took its boundaries from the entrance, because the model drops them on the way.
        hold: takes back what another model or kernel replaced since.
        last_seen: what the last batch carried, in words.
    """

    def __init__(self, model: str, check: bool):
        self.model = model
        self.check = check
        self.attention = False
        self.attention_id: Optional[str] = None
        self.sequence: list[str] = []
        self.own_code = False
        self.blocks: list[weakref.ref] = []
        self.carried = False
        self.hold: Callable[[], None] = lambda: None
        self.last_seen: Optional[str] = None

    def __deepcopy__(self, memo):
        """A copied model keeps the plan, which holds functions that exist once in a process."""
        return self


def fault(plan: Plan, batch: Batch, attention: str) -> Optional[str]:
    """Why a layer of a model whose attention goes by the name ``attention`` would mix the samples, or None."""
    reason = _function_fault(plan, batch)
    if reason is None and plan.attention:
        ours = plan.attention_id is not None and attention == plan.attention_id
        reason = (_flash_fault if ours else _mask_fault)(batch)
    return None if reason is None else f"{plan.model}: {batch.sign}, but {reason}"


def _function_fault(plan: Plan, batch: Batch) -> Optional[str]:
    """Why some convolution or recurrence of the model would mix the samples of this batch, or None."""
    if plan.own_code and batch.sign:
        return "it mixes tokens in code of its own, which knows no boundaries. Pass one sample a row"
    if plan.sequence and not (batch.has("seq_idx") or batch.has("cu_seq_lens_q")) and batch.sign:
        return (
            f"{plan.sequence[0]} gets neither seq_idx nor cu_seq_lens_q and would mix the samples. "
            f"Collate with {_COLLATOR}"
        )
    return None


def _mask_fault(batch: Batch) -> Optional[str]:
    """As `_function_fault`, for attention under masks that transformers makes (sdpa, eager)."""
    if batch.sign and (batch.has("attention_mask") or batch.cached or not batch.positions_restart):
        return (
            "attention is not a flash kernel here, and the masks transformers makes follow position_ids only without "
            "an attention_mask and with use_cache=False"
        )
    return None


def _flash_fault(batch: Batch) -> Optional[str]:
    """As `_function_fault`, for flash attention: a padding mask counts before keywords, these before positions."""
    if batch.has("attention_mask") and batch.mask is not None:
        if batch.sign:
            return "attention drops sample boundaries next to a 0 in attention_mask. Leave attention_mask away"
        return None
    if batch.has(*ATTENTION_KEYWORDS) or not batch.sign:
        return None
    given = [name for name in ATTENTION_KEYWORDS if batch.has(name)]
    missing = ", ".join(name for name in ATTENTION_KEYWORDS if not batch.has(name))
    if batch.positions_restart and batch.size is not None and batch.size[0] == 1:
        ids = batch.arguments["position_ids"]
        if ids.ndim == 2 or ids.shape[0] == 4:  # transformers reads the text plane of four
            return None
        return f"attention cannot read {ids.ndim}-D position_ids. Pass {missing}"
    if given:
        return f"attention follows {', '.join(given)} only together with {missing}"
    if batch.size is not None and batch.size[0] > 1:
        return f"attention follows position_ids only for one row, got {batch.size[0]}. Flatten, or pass {missing}"
    return f"attention gets no boundaries. Pass {missing}, or position_ids that restart"
