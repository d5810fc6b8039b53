"""What the demo claims, judged from the measured numbers alone, so that a test can hand it wrong ones."""

from __future__ import annotations

import math
from typing import Any

from bundle.errors import DemoError

OPS = {"Llama": ("attention_fwd", "attention_bwd"), "Lfm2": ("attention_fwd", "causal_conv1d_fwd")}
"""The ops of the bundle that a step of each model must have run."""

EPSILON = 2.0**-23


def allowance(targets: int) -> float:
    """How far float32 sums of ``targets`` terms may be apart when only their order differs: T * eps."""
    return targets * EPSILON


def judge(without: dict[str, Any], with_bundle: dict[str, Any]) -> None:
    """DemoError that names the first claim that does not hold."""
    for name, measured in with_bundle["models"].items():
        _same_step(name, measured["difference"], allowance(with_bundle["targets"]))
        _bundle_computed(name, measured["ops"])
        _learned(name, measured["losses"])
        padded = without["models"][name]["padded_seconds"]
        if not measured["seconds"] < padded:
            raise DemoError(
                f"{name}: a packed step on the bundle takes {measured['seconds']:.3f} s, the same samples padded with "
                f"sdpa take {padded:.3f} s",
                hint="Other work on this machine disturbs the times; run it again alone.",
            )


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
