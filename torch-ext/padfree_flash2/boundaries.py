"""Refuses a packed batch before a layer mixes its samples.

A packed batch holds several samples in one row, and nothing but its keywords says where they end. A layer that does not
get them computes one long sample, without an error. So each batch of a wired model is looked at twice: at its entrance
(`enter`), where the keywords are compared with what its layers read, and in the layer itself (`sequence_index`,
`require_attention`), where a keyword that the model dropped on the way is missed. Values are read only when the
keywords do not settle the question, and nothing is checked under ``torch.compile``.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Optional

import torch

_ATTENTION_KEYWORDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_SEEN = ("position_ids", "attention_mask", "seq_idx", *_ATTENTION_KEYWORDS)
_COLLATOR = "DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)"

_threads = threading.local()


class Batch:
    """What a model was called with, as far as sample boundaries go; looks at tensor values only when asked."""

    def __init__(self, arguments: Mapping, cached: bool = False):
        self.cached = cached
        tokens = arguments.get("input_ids")
        if tokens is None:
            tokens = arguments.get("inputs_embeds")
        self.size = None if tokens is None else tuple(tokens.shape[:2])
        self.arguments = {name: arguments[name] for name in _SEEN if arguments.get(name) is not None}

    def has(self, *names: str) -> bool:
        return all(name in self.arguments for name in names)

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


class Plan:
    """What one wired model needs: filled by `wiring.enable`, read at every batch.

    Attributes:
        model: class name, for messages.
        parameters: names of the forward's parameters, to name positional arguments.
        attention: whether the model has attention layers.
        attention_id: the name under which attention is this bundle's; under another one transformers makes masks.
        sequence: names of the wired functions that read ``seq_idx`` or ``cu_seq_lens_q``.
        packages: names of functions another kernel or package serves, with the keyword they read.
        torch: names of functions that run transformers' torch code, which cannot keep samples apart.
        hold: takes back what another model or kernel replaced since.
        last_seen: what the last batch carried, in words.
    """

    def __init__(self, model: str, parameters: Sequence[str]):
        self.model = model
        self.parameters = tuple(parameters)
        self.attention = False
        self.attention_id: Optional[str] = None
        self.sequence: list[str] = []
        self.packages: list[tuple[str, str]] = []
        self.torch: list[str] = []
        self.hold: Callable[[], None] = lambda: None
        self.last_seen: Optional[str] = None

    def __deepcopy__(self, memo):
        """A copied model keeps the plan, which holds functions that exist once in a process."""
        return self


def enter(plan: Plan, module, args: tuple, kwargs: dict) -> None:
    """Forward pre-hook of a wired model."""
    if torch.compiler.is_compiling():
        return
    plan.hold()
    arguments = {**dict(zip(plan.parameters, args)), **kwargs}
    batch = None
    if arguments.get("cache") is None:  # continuous batching brings its own bounds with it
        cached = arguments.get("use_cache")
        batch = Batch(arguments, getattr(module.config, "use_cache", False) if cached is None else cached)
    _stack().append((plan, batch))
    if batch is not None:
        plan.last_seen = _in_words(batch)
        ours = plan.attention_id is not None and module.config._attn_implementation == plan.attention_id
        fault = _function_fault(plan, batch) or (plan.attention and (_flash_fault if ours else _mask_fault)(batch))
        if fault:
            raise ValueError(f"{plan.model}: {batch.sign}, but {fault}")


def leave(plan: Plan, *_) -> None:
    """Forward hook of a wired model; runs after an error too."""
    if not torch.compiler.is_compiling():
        stack = _stack()
        if stack and stack[-1][0] is plan:
            stack.pop()


def _stack() -> list:
    if not hasattr(_threads, "stack"):
        _threads.stack = []
    return _threads.stack


def _in_words(batch: Batch) -> str:
    """Names of the keywords, without keeping their tensors alive."""
    words = []
    for name, value in batch.arguments.items():
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else value if isinstance(value, int) else "..."
        words.append(f"{name} {shape}")
    return f"tokens {batch.size}" + "".join(f", {word}" for word in words)


def _function_fault(plan: Plan, batch: Batch) -> Optional[str]:
    """Why some convolution or recurrence of the model would mix the samples of this batch, or None."""
    if plan.torch and batch.sign:
        return (
            f"this bundle does not have {', '.join(plan.torch)} yet, and the torch code transformers runs instead "
            "mixes packed samples. Pass one sample a row with an attention_mask, or install the package that has it"
        )
    for name, keyword in plan.packages:
        if not batch.has(keyword) and batch.sign:
            return f"{name} gets no {keyword} and would mix the samples. Collate with {_COLLATOR}"
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
    if batch.has(*_ATTENTION_KEYWORDS) or not batch.sign:
        return None
    given = [name for name in _ATTENTION_KEYWORDS if batch.has(name)]
    missing = ", ".join(name for name in _ATTENTION_KEYWORDS if not batch.has(name))
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


def sequence_index(hidden_states: torch.Tensor, seq_idx, cu_seq_lens) -> Optional[torch.Tensor]:
    """``seq_idx`` of ``hidden_states`` ``(B, D, L)``: as given, else from ``cu_seq_lens`` ``(N + 1,)``, else None.

    Raises:
        ValueError: neither came though the batch at the model's entrance is packed, or ``cu_seq_lens`` does not end at
            the number of tokens (as when a cached prefix was put before them).
    """
    if seq_idx is not None:
        return seq_idx
    rows, length = hidden_states.shape[0], hidden_states.shape[-1]
    if cu_seq_lens is None:
        _require(rows, length, "causal_conv1d_fn", "seq_idx and cu_seq_lens_q")
        return None
    _require_all_tokens("causal_conv1d_fn", cu_seq_lens, rows * length)
    tokens = torch.arange(rows * length, device=hidden_states.device, dtype=cu_seq_lens.dtype)
    return torch.bucketize(tokens, cu_seq_lens[1:], right=True, out_int32=True).view(rows, length)


def sequence_ends(layer: str, query: torch.Tensor, cu_seqlens, seq_idx) -> Optional[torch.Tensor]:
    """``cu_seqlens`` ``(N + 1,)`` of ``query`` ``(B, T, ...)``, its rows one after the other: as given, else where
    ``seq_idx`` ``(B, T)`` changes and where a row begins, else None.

    Raises:
        ValueError: neither came though the batch at the model's entrance is packed, or ``cu_seqlens`` does not end at
            the number of tokens.
    """
    rows, length = query.shape[:2]
    if cu_seqlens is not None:
        _require_all_tokens(layer, cu_seqlens, rows * length)
        return cu_seqlens
    if seq_idx is None:
        _require(rows, length, layer, "cu_seq_lens_q and seq_idx")
        return None
    begins = torch.ones((rows, length), dtype=torch.bool, device=query.device)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = begins.reshape(-1).nonzero()[:, 0].to(torch.int32)
    return torch.cat([first, first.new_full((1,), rows * length)])


def _require_all_tokens(layer: str, cu_seqlens: torch.Tensor, tokens: int) -> None:
    if not torch.compiler.is_compiling() and int(cu_seqlens[-1]) != tokens:
        raise ValueError(
            f"{layer}: cu_seq_lens_q must end at the number of tokens ({tokens}), got {int(cu_seqlens[-1])}"
        )


def require_attention(query: torch.Tensor, attention_mask, arguments: Mapping) -> None:
    """Raise if ``query`` ``(B, H, L, D)`` belongs to a packed batch and its layer got no boundaries."""
    if attention_mask is None:
        if all(arguments.get(name) is not None for name in _ATTENTION_KEYWORDS):
            return
        if arguments.get("position_ids") is not None and query.shape[0] == 1:
            return
    _require(query.shape[0], query.shape[2], "attention", "its boundary keywords")


def _require(rows: int, length: int, layer: str, keywords: str) -> None:
    if torch.compiler.is_compiling():
        return
    stack = _stack()
    if not stack or stack[-1][1] is None:
        return
    plan, batch = stack[-1]
    if batch.size == (rows, length) and batch.sign:
        raise ValueError(
            f"{plan.model}: {batch.sign}, but the model drops {keywords} on the way to {layer}, which would mix the "
            "samples. Pass one sample a row with an attention_mask"
        )
