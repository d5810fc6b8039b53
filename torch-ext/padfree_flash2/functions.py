"""The function modules transformers' convolution and recurrent layers call.

A modelling file makes one module of each such function, for the whole process; `kernels` replaces its ``forward``. So
a wired function serves every model of that family: it is counted by model, and given back when the last one is
disabled. The count lives on the module's class, where two copies of this bundle and a deep copy of a model find it.
"""

import inspect
import sys
import weakref
from typing import NamedTuple, Optional

from . import layers

# What the hybrid models of transformers ask for: whether it mixes the tokens of a row. The others are decoding steps,
# which see one token of each sample.
MIXES = {
    "causal_conv1d_fn": True,
    "causal_conv1d_update": False,
    "chunk_gated_delta_rule": True,
    "fused_recurrent_gated_delta_rule": False,
    "chunk_kda": True,
    "fused_recurrent_kda": False,
    "mamba_chunk_scan_combined": True,
    "mamba_split_conv1d_scan_combined": True,
    "selective_scan_fn": True,
    "mamba_inner_fn": True,
    "selective_state_update": False,
}

# transformers' names of layers that mix the tokens of a row by other means than attention, and of attention that picks
# its keys by scores of blocks, which know no boundaries
_STATEFUL_LAYERS = {"conv", "hybrid", "hybrid_sliding", "linear_attention"}
_BLOCK_LAYERS = {
    "indexed_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "minimax_m3_sparse",
}

TORCH = "torch code of transformers"
PADFREE = "padfree"


class _Shared(NamedTuple):
    users: weakref.WeakSet
    original: Optional[object]


def layer(name: str) -> type:
    """The class of `layers` that replaces a function."""
    return getattr(layers, name)


def name_of(function) -> str:
    """The name by which `kernels` looks a function module up."""
    return type(function).kernel_layer_name


def used_by(model) -> dict[str, list]:
    """The function modules of `MIXES` a model calls, by name: one entry for each layer that calls it.

    A deep copy of a model lists copies of them that nothing calls; they are put right here.
    """
    found: dict[str, list] = {}
    for module in model.modules():
        listed = getattr(module, "_kernel_funcs", {})
        for key, function in listed.items():
            if name_of(function) in MIXES:
                listed[key] = function = _called(module, function)
                found.setdefault(name_of(function), []).append(function)
    return found


def mixers(model) -> list:
    """The modules of a model that call a function of `MIXES` which mixes the tokens of a row."""
    return [
        module
        for module in model.modules()
        if any(MIXES.get(name_of(function)) for function in getattr(module, "_kernel_funcs", {}).values())
    ]


def has_own_code(model) -> bool:
    """Whether a model mixes the tokens of a row in code of its own, in whose place nothing can be put.

    RWKV, xLSTM, RecurrentGemma, MiniMax and Zaya have states, but call no function of `MIXES`. Qwen4-Exp embeds n-grams
    and, as DeepSeek V4 and GLM-5, attends to blocks.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    stateful = (model._is_stateful or bool(_STATEFUL_LAYERS & kinds)) and not mixers(model)
    return stateful or bool(_BLOCK_LAYERS & kinds) or bool(getattr(config, "ple_layer_ids", None))


def _called(module, function):
    """The function module of this class in the modelling file of ``module``: the one its forward calls."""
    for kind in type(module).__mro__:
        for value in vars(sys.modules[kind.__module__]).values():
            if type(value) is type(function):
                return value
    return function


def unreplaceable(model) -> list[str]:
    """Names of `MIXES` a model calls as plain functions, which nothing can replace (``USE_HUB_KERNELS`` is off)."""
    files = {type(module).__module__ for module in model.modules()}
    return sorted(name for name in MIXES if any(inspect.isfunction(vars(sys.modules[f]).get(name)) for f in files))


def implementation(function) -> str:
    """What computes a function now: `PADFREE`, `TORCH`, or the module of another kernel or package."""
    forward = _computes(function)
    if is_wired(function):
        return PADFREE
    if forward is not type(function).forward:
        return f"kernel {forward.__module__}"
    # transformers chose between the original package and its own code when the modelling file was imported
    wrapped = inspect.getclosurevars(forward).nonlocals.get("func")
    chosen = inspect.getclosurevars(wrapped).nonlocals if inspect.isfunction(wrapped) else {}
    if chosen.get("is_new_implementation"):
        return f"package {chosen['implementation'].__module__}"
    return TORCH


def is_wired(function) -> bool:
    """Whether this very bundle's layer computes a function."""
    return name_of(function) in MIXES and _computes(function) is layer(name_of(function)).forward


def _computes(function):
    return getattr(vars(function).get("forward"), "__func__", type(function).forward)


def take(function, model) -> None:
    """Count a model as user of a function, which `kernels` replaces next."""
    kind = type(function)
    if "_padfree" not in vars(kind):
        kind._padfree = _Shared(weakref.WeakSet(), vars(function).get("forward"))
    kind._padfree.users.add(model)


def give_back(function, model) -> None:
    """Undo `take`; without users left the function computes what it did before the first one, to identity."""
    shared = vars(type(function)).get("_padfree")
    if shared is None:
        return
    shared.users.discard(model)
    if not shared.users:
        set_forward(function, shared.original)
        del type(function)._padfree


def replaceable(model) -> list:
    """Every module `kernels` may touch when it goes over a model: layers by name and listed functions."""
    found = {}
    for module in model.modules():
        if hasattr(type(module), "kernel_layer_name"):
            found[id(module)] = module
        for function in getattr(module, "_kernel_funcs", {}).values():
            found[id(function)] = function
    return list(found.values())


def set_forward(module, forward) -> None:
    """Set a module's own ``forward``; None leaves it to its class."""
    if forward is None:
        vars(module).pop("forward", None)
    else:
        module.forward = forward
