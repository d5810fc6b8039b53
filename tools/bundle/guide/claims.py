"""What the demo claims, judged from the measured numbers alone, so that a test can hand it wrong ones."""

from __future__ import annotations

import math
from typing import Any

from bundle.errors import DemoError

_ATTENTION, _CONVOLUTION = ("attention_fwd", "attention_bwd"), ("causal_conv1d_fwd", "causal_conv1d_bwd")
_DELTA_RULE = ("gated_delta_rule_fwd", "gated_delta_rule_bwd")
OPS = {"Llama": _ATTENTION, "Lfm2": _ATTENTION + _CONVOLUTION, "Qwen3.5": _ATTENTION + _CONVOLUTION + _DELTA_RULE}
"""The ops of the bundle that a step of each model must have run."""

BUNDLE, PADDED, PACKED = "packed on the bundle", "padded without it", "packed without it"
"""The ways of one training step that are timed in turns."""

EPSILON = 2.0**-23


def allowance(targets: int) -> float:
    """How far float32 sums of ``targets`` terms may be apart when only their order differs: T * eps."""
    return targets * EPSILON


def faster(seconds: dict[str, list[float]], way: str) -> float:
    """How many times faster than padded ``way`` is, by the best round of each: the least disturbed one."""
    return min(seconds[PADDED]) / min(seconds[way])


def judge(with_bundle: dict[str, Any]) -> None:
    """DemoError that names the first claim that does not hold. Speed is shown, not claimed: other work disturbs it."""
    for name, measured in with_bundle["models"].items():
        _same_step(name, measured["difference"], allowance(with_bundle["targets"]))
        _bundle_computed(name, measured["ops"])
        _learned(name, measured["losses"])


def _same_step(name: str, difference: dict[str, float], allowed: float) -> None:
    for what, apart in difference.items():
        if not apart <= allowed:
            raise DemoError(
                f"{name}: packed {what} differs from the sample-by-sample one by {apart:.1e}, {allowed:.1e} allowed",
                hint="This is a fault in the bundle: report it with the output above.",
            )


def _bundle_computed(name: str, ops: dict[str, int]) -> None:
    missing = [op for op in OPS[name] if not ops.get(op)]
    if missing:
        raise DemoError(f"{name}: a step did not run {', '.join(missing)} of the bundle; it ran {ops or 'none of it'}")


def _learned(name: str, losses: list[float]) -> None:
    if not all(map(math.isfinite, losses)) or not losses[-1] < losses[0]:
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        raise DemoError(f"{name}: the loss must fall while training, got {shown or 'none'}")
