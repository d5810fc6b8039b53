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

# What the hybrid models of transformers ask for, with the keyword that keeps packed samples apart in the original
# package (None: a decoding step, which sees one token of each sample).
KEYWORDS = {
    "causal_conv1d_fn": "seq_idx",
    "causal_conv1d_update": None,
    "chunk_gated_delta_rule": "cu_seq_lens_q",
    "fused_recurrent_gated_delta_rule": None,
    "chunk_kda": "cu_seq_lens_q",
    "fused_recurrent_kda": None,
    "mamba_chunk_scan_combined": "seq_idx",
    "mamba_split_conv1d_scan_combined": "seq_idx",
    "selective_scan_fn": "seq_idx",
    "mamba_inner_fn": "seq_idx",
    "selective_state_update": None,
}

# transformers' names of layers that mix the tokens of a row by other means than attention
_STATEFUL_LAYERS = {"conv", "hybrid", "hybrid_sliding", "linear_attention"}

TORCH = "torch code of transformers"
PADFREE = "padfree"


class _Shared(NamedTuple):
    users: weakref.WeakSet
    original: Optional[object]


def layer(name: str) -> Optional[type]:
    """The class of `layers` that replaces a function, or None if this bundle has none."""
    found = getattr(layers, name, None)
    return found if isinstance(found, type) and name in KEYWORDS else None


def name_of(function) -> str:
    """The name by which `kernels` looks a function module up."""
    return type(function).kernel_layer_name


def used_by(model) -> dict[str, list]:
    """The function modules of `KEYWORDS` a model calls, by name: one entry for each layer that calls it.

    A deep copy of a model lists copies of them that nothing calls; they are put right here.
    """
    found: dict[str, list] = {}
    for module in model.modules():
        listed = getattr(module, "_kernel_funcs", {})
        for key, function in listed.items():
            if name_of(function) in KEYWORDS:
                listed[key] = function = _called(module, function)
                found.setdefault(name_of(function), []).append(function)
    return found


def mixers(model) -> list:
    """The modules of a model that call a function of `KEYWORDS` which mixes the tokens of a row."""
    return [
        module
        for module in model.modules()
        if any(KEYWORDS.get(name_of(function)) for function in getattr(module, "_kernel_funcs", {}).values())
    ]


def has_own_state(model) -> bool:
    """Whether a model mixes the tokens of a row in code of its own: it has states, but calls no function of `KEYWORDS`.

    RWKV, xLSTM, RecurrentGemma, MiniMax and Zaya do so; nothing can be put in place of that code.
    """
    layers_of = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return (model._is_stateful or bool(_STATEFUL_LAYERS & set(layers_of))) and not mixers(model)


def _called(module, function):
    """The function module of this class in the modelling file of ``module``: the one its forward calls."""
    for kind in type(module).__mro__:
        for value in vars(sys.modules[kind.__module__]).values():
            if type(value) is type(function):
                return value
    return function


def unreplaceable(model) -> list[str]:
    """Names of `KEYWORDS` a model calls as plain functions, which nothing can replace (``USE_HUB_KERNELS`` is off)."""
    files = {type(module).__module__ for module in model.modules()}
    return sorted(name for name in KEYWORDS if any(inspect.isfunction(vars(sys.modules[f]).get(name)) for f in files))


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
    return _computes(function) is getattr(layer(name_of(function)), "forward", None)


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
