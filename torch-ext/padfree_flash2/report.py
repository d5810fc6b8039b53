"""Says in words what computes a model's layers, on which build and versions: text to paste into an issue."""

import platform
from typing import Optional

import torch

from . import functions, integrity
from ._register import bfloat16_dot, handed_to_torch, isa

# The newest pair known to work together; others may, and are named when they are met.
TESTED = {"transformers": "5.22.2", "kernels": "0.17.2"}


class Report(str):
    """Text that a prompt or a notebook shows as it is.

    Attributes:
        wired: layer name to what computes it, for what this bundle computes.
        not_wired: layer name to the reason, for what it could not take over.
    """

    wired: dict[str, str]
    not_wired: dict[str, str]

    __repr__ = str.__str__


def versions() -> dict[str, str]:
    """Of the libraries `TESTED` names, as installed."""
    import kernels
    import transformers

    return {"transformers": transformers.__version__, "kernels": kernels.__version__}


def untested() -> Optional[str]:
    """What is outside the tested pair, or None."""
    found = versions()
    if found == TESTED:
        return None
    ours, theirs = (" with ".join(f"{name} {version}" for name, version in pair.items()) for pair in (TESTED, found))
    return f"tested with {ours}, got {theirs}"


def _units() -> str:
    """What attention uses beside the path."""
    dot = " (q k^T of bfloat16 by avx512_bf16)" if bfloat16_dot() else ""
    dtypes = " and ".join(str(dtype).removeprefix("torch.") for dtype in handed_to_torch())
    return dot + (f" (plain {dtypes} attention by torch, in AMX)" if dtypes else "")


def describe(model, wired) -> Report:
    """The report on a model; ``wired`` is what `wiring` keeps of it, None before ``enable`` and after ``disable``."""
    about, origin = integrity.metadata(), integrity.origin()
    source = f"{origin.repo_id} at {origin.revision}" if origin.repo_id else "a local folder"
    parameter = next(model.parameters())
    lines = [
        "padfree-flash2 report",
        f"  build       {origin.path.name}, id {about['id']}, version {about['version']}, from {source}",
        f"  machine     {platform.machine()} {platform.system()}, CPU path {isa()}{_units()}, "
        f"{torch.get_num_threads()} threads",
        f"  versions    python {platform.python_version()}, torch {torch.__version__}, "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
        + (f" ({untested()})" if untested() else ""),
        f"  model       {type(model).__name__}, {parameter.dtype} on {parameter.device}, "
        + ("training" if model.training else "inference"),
    ]
    computed: dict[str, str] = {}
    if wired is not None and wired.attention_id is not None:
        computed["attention"] = f"{functions.PADFREE} as {wired.attention_id}"
    elif has_attention(model):
        computed["attention"] = str(model.config._attn_implementation)
    used = functions.used_by(model)
    for name, found in used.items():
        kinds = sorted({functions.implementation(function) for function in found})
        computed[name] = " and ".join(kinds)
    for name, by in computed.items():
        count = f"{len(used[name])} x " if name in used else ""
        lines.append(f"  layer       {count}{name}: {by}")
    not_wired = {} if wired is None else wired.not_wired
    lines += [f"  not wired   {name}: {reason}" for name, reason in not_wired.items()]
    if wired is None:
        lines.append("  boundaries  not checked: enable() was not called on this model, or disable() was")
    elif not wired.plan.check:
        lines.append("  boundaries  not checked: enable(check_boundaries=False)")
    else:
        lines.append(f"  boundaries  checked in eager mode; last batch: {wired.plan.last_seen or 'none yet'}")
    text = Report("\n".join(lines))
    text.wired = {name: by for name, by in computed.items() if by.startswith(functions.PADFREE)}
    text.not_wired = dict(not_wired)
    return text


def has_attention(model) -> bool:
    """Whether a model has attention layers that transformers dispatches."""
    return bool(model._supports_flash_attn or model._supports_sdpa)
