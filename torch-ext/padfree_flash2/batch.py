"""What a wired model was called with, as far as sample boundaries and states go."""

from collections.abc import Mapping
from functools import cached_property
from typing import Optional

import torch

ATTENTION_KEYWORDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")

_SEEN = ("position_ids", "attention_mask", "seq_idx", *ATTENTION_KEYWORDS)


class Batch:
    """What a model was called with, as far as boundaries and states go; looks at tensor values only when asked."""

    def __init__(self, arguments: Mapping, cached: bool = False):
        self.cached = cached
        tokens = arguments.get("input_ids")
        self.tokens = arguments.get("inputs_embeds") if tokens is None else tokens
        self.size = None if self.tokens is None else tuple(self.tokens.shape[:2])
        self.arguments = {name: arguments[name] for name in _SEEN if arguments.get(name) is not None}
        self.cache = arguments.get("past_key_values")

    def has(self, *names: str) -> bool:
        return all(name in self.arguments for name in names)

    def boundaries(self) -> tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
        """``seq_idx`` and ``cu_seq_lens_q``."""
        return self.arguments.get("seq_idx"), self.arguments.get("cu_seq_lens_q")

    @cached_property
    def states(self) -> dict[int, torch.Tensor]:
        """The recurrent states in the cache, by identity, as they are at the first look."""
        layers = getattr(self.cache, "layers", ())
        states = (state for layer in layers for state in getattr(layer, "recurrent_states", {}).values())
        return {id(state): state for state in states if state is not None}

    @cached_property
    def mask(self) -> Optional[torch.Tensor]:
        """The 2-D padding mask of the tokens at hand, if there is one with a 0 in it."""
        mask = self.arguments.get("attention_mask")
        if isinstance(mask, Mapping):  # one prepared mask for each kind of layer, as `generate` makes them
            mask = next((m for m in mask.values() if isinstance(m, torch.Tensor) and m.ndim == 2), None)
        if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or self.size is None or mask.shape[1] < self.size[1]:
            return None
        mask = mask[:, -self.size[1] :] != 0
        return None if bool(mask.all()) else mask

    @cached_property
    def positions_restart(self) -> bool:
        """Whether ``position_ids`` start again between two tokens that are both real.

        Of 3-D ids (Qwen-VL's) the first plane counts, where tokens of one image share a position. Next to a 4-D mask
        positions tell nothing: padded rows restart as well.
        """
        ids = self.arguments.get("position_ids")
        if ids is None or ids.shape[-1] < 2 or getattr(self.arguments.get("attention_mask"), "ndim", 2) == 4:
            return False
        least = 0 if ids.ndim == 3 else 1
        ids = ids[0] if ids.ndim == 3 else ids.view(-1, ids.shape[-1])
        restarts = ids.diff() < least
        if self.mask is not None and self.mask.shape[1] == ids.shape[1]:
            restarts = restarts & self.mask[:, 1:] & self.mask[:, :-1]
        return bool(restarts.any())

    @cached_property
    def sign(self) -> Optional[str]:
        """What tells that some row holds more than one sample, or None."""
        cu_seq_lens, seq_idx = self.arguments.get("cu_seq_lens_q"), self.arguments.get("seq_idx")
        if isinstance(cu_seq_lens, torch.Tensor) and self.size and cu_seq_lens.numel() - 1 > self.size[0]:
            return f"cu_seq_lens_q holds {cu_seq_lens.numel() - 1} samples"
        if isinstance(seq_idx, torch.Tensor) and seq_idx.shape[-1] > 1 and bool((seq_idx.diff() != 0).any()):
            return "seq_idx changes inside a row"
        return "position_ids restart inside a row" if self.positions_restart else None
