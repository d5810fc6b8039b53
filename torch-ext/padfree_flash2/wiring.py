"""Wires a transformers model to this bundle: attention by repository id, layers through `kernels`' own mapping."""

import functools
import inspect
import sys
import warnings
import weakref
from typing import Optional

from . import attention, boundaries, functions, integrity, repository
from .refusals import Plan
from .report import TESTED, Report, describe, has_attention, untested


class Wired:
    """What `enable` did to one model, so that `disable` can undo it."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.functions: list = []
        self.attention_id: Optional[str] = None
        self.attention_before: list = []
        self.forwards_before: list = []
        self.kernels_before: Optional[tuple] = None
        self.hooks: list = []
        self.not_wired: dict[str, str] = {}


_wired: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


def enable(model, *, check_boundaries: bool = True) -> Report:
    """Make a transformers model compute on this bundle's kernels, in training and inference.

    Attention is set to this bundle's repository id; each convolution or recurrence this bundle has replaces the
    function transformers calls, which all models of the family share. Calling it again wires anew.

    Args:
        model: a ``PreTrainedModel``, or a module around one (PEFT, DDP).
        check_boundaries: refuse a packed batch (ValueError, before any layer runs) if a layer would not get its sample
            boundaries. Costs microseconds a step; nothing is checked under ``torch.compile``.

    Returns:
        What was wired, what not and why; printable.

    Raises:
        ImportError: transformers or kernels is missing.
        TypeError: ``model`` holds no ``PreTrainedModel``.
        ValueError: the model is on a device this variant was not built for.
        RuntimeError: something was not replaced though it should have been; the model is left as it was.
    """
    _check_libraries()
    model = _pretrained(model)
    _check_device(model)
    disable(model)
    wired = Wired(Plan(type(model).__name__, check_boundaries))
    _wired[model] = wired
    try:
        _wire_attention(model, wired)
        _wire_functions(model, wired)
    except BaseException:
        disable(model)
        raise
    _hook(model, wired)
    return describe(model, wired)


def disable(model) -> None:
    """Give a model back what it had before `enable`; does nothing to one that is not wired."""
    model = _pretrained(model)
    wired = _wired.pop(model, None)
    if wired is None:
        return
    for hook in wired.hooks:
        hook.remove()
    boundaries.release_recomputation(wired.plan)
    for module, forward in wired.forwards_before:
        functions.set_forward(module, forward)
    for function in wired.functions:
        functions.give_back(function, model)
    if wired.kernels_before is not None:
        model.kernel_config, model._use_kernels = wired.kernels_before
    for config, name in wired.attention_before:
        config._attn_implementation_internal = name
    if wired.attention_id is not None:
        repository.release(wired.attention_id)
        sys.modules["transformers.modeling_flash_attention_utils"]._loaded_implementation = None  # else the name stays


def report(model) -> Report:
    """What computes a model's layers, on which build and versions, and what its last batch carried: for an issue."""
    model = _pretrained(model)
    return describe(model, _wired.get(model))


def _check_libraries() -> None:
    try:
        import kernels  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        pins = " ".join(f"{name}=={version}" for name, version in TESTED.items())
        raise ImportError(
            f"enable: transformers and kernels must be installed, got: {error}. pip install {pins}"
        ) from error
    if untested():
        warnings.warn(f"enable: {untested()}", stacklevel=3)


def _pretrained(model):
    """The outermost ``PreTrainedModel`` in ``model``."""
    import torch
    from transformers import PreTrainedModel

    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        if isinstance(module, PreTrainedModel):
            return module
    raise TypeError(f"enable: model must be or hold a transformers PreTrainedModel, got {type(model).__name__}")


def _check_device(model) -> None:
    backend, device = integrity.metadata()["backend"]["type"], model.device.type
    if device != backend:
        load = f" (backend={device!r} of get_kernel is for that)" if device in ("cpu", "cuda") else ""
        raise ValueError(f"enable: model must be on {backend}, the backend of this variant, got {device}{load}")


def _wire_attention(model, wired: Wired) -> None:
    """Set attention to this bundle and prove that transformers will call it."""
    from transformers import PreTrainedModel
    from transformers import modeling_flash_attention_utils as flash
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not has_attention(model):
        return
    wired.plan.attention = True
    reason = _obstacle(model)
    if reason is not None:
        wired.not_wired["attention"] = reason
        return
    name = repository.attention_id(model)
    repository.claim(name)
    wired.attention_id = name
    wired.attention_before = [(config, config._attn_implementation_internal) for config in _configs(model.config)]
    flash._loaded_implementation = None  # else a load that failed before is taken for done
    model.set_attn_implementation(name)
    loaded, _ = flash.lazy_import_flash_attention(name)
    if loaded[:2] != (attention.flash_attn_func, attention.flash_attn_varlen_func):
        raise RuntimeError(f"enable: {name} must load {integrity.origin().path}, got {loaded[1].__module__}")
    if model.config._attn_implementation != name:
        raise RuntimeError(f"enable: attention must be {name} now, got {model.config._attn_implementation}")
    ALL_ATTENTION_FUNCTIONS.register(name, _attention_interface())
    wired.plan.attention_id = name
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation != name:
            wired.not_wired[f"attention of {type(module).__name__}"] = f"stayed {module.config._attn_implementation}"


def _obstacle(model) -> Optional[str]:
    """Why transformers would not let a model use a flash kernel by our name, or None."""
    if not model._supports_flash_attn:
        return f"transformers says {type(model).__name__} does not support flash attention"
    if not model._can_set_attn_implementation():
        return f"{type(model).__name__} does not use transformers' attention interface"
    accepted = getattr(model, "_compatible_flash_implementations", None)
    if accepted and repository.attention_id(model) not in accepted:
        return f"transformers lets it use only {', '.join(accepted)}"
    return None


def _configs(config) -> list:
    """A model's configuration and those inside it."""
    inner = (getattr(config, key, None) for key in config.sub_configs)
    return [config] + [each for one in inner if one is not None for each in _configs(one)]


@functools.cache
def _attention_interface():
    """transformers' own flash-attention forward, behind a last look at the boundaries."""
    from transformers.integrations.flash_attention import flash_attention_forward

    def padfree_attention(module, query, key, value, attention_mask, *args, **kwargs):
        boundaries.require_attention(query, attention_mask, kwargs)
        return flash_attention_forward(module, query, key, value, attention_mask, *args, **kwargs)

    return padfree_attention


def _wire_functions(model, wired: Wired) -> None:
    """Replace the functions the model calls, and prove it; say what no replacement reaches."""
    from transformers.integrations.hub_kernels import kernelize

    plain = functions.unreplaceable(model)
    if plain:
        raise RuntimeError(
            f"enable: {', '.join(plain)} must be replaceable, got plain functions: USE_HUB_KERNELS was off when "
            "transformers was imported"
        )
    if functions.has_own_code(model):
        wired.plan.own_code = True
        wired.not_wired["own code"] = f"{type(model).__name__} mixes tokens in code that no kernel can replace"
    used = functions.used_by(model)
    if not used:
        return
    wired.plan.sequence = [name for name in used if functions.MIXES[name]]
    wired.functions = list({function for found in used.values() for function in found})
    others = (module for module in functions.replaceable(model) if module not in wired.functions)
    wired.forwards_before = [(module, vars(module).get("forward")) for module in others]
    wired.kernels_before = (model.kernel_config, model.use_kernels)
    for function in wired.functions:
        functions.take(function, model)
    model.kernel_config = _kernel_config(model, list(used))
    kernelize(model)
    for module, forward in wired.forwards_before:  # `kernels` also sets what it found no kernel for
        functions.set_forward(module, forward)
    for function in wired.functions:
        if not functions.is_wired(function):
            raise RuntimeError(
                f"enable: {functions.name_of(function)} must be replaced now, got {functions.implementation(function)}"
            )


def _hook(model, wired: Wired) -> None:
    """Have each batch read at the entrance of the model and of its base model, which may be called by itself."""
    plan = wired.plan
    plan.hold = functools.partial(_hold, tuple(wired.functions), wired.attention_id)
    for module in {id(each): each for each in (model, model.base_model)}.values():
        entrance = boundaries.Entrance(plan, tuple(inspect.signature(module.forward).parameters), module is model)
        enter = functools.partial(boundaries.enter, entrance)
        wired.hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        leave = functools.partial(boundaries.leave, plan)
        wired.hooks.append(module.register_forward_hook(leave, always_call=True))
    if not plan.sequence:
        return
    plan.blocks = [weakref.ref(module) for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    for mixer in functions.mixers(model):
        wired.hooks.append(mixer.register_forward_pre_hook(functools.partial(boundaries.require_batch, plan)))


def _hold(wired_functions: tuple, attention_id: Optional[str]) -> None:
    """Take back what changed since: another model's ``train()`` re-kernelizes shared functions, and a switch between
    two attention kernels registers transformers' own forward again."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for function in wired_functions:
        if not functions.is_wired(function):
            functions.set_forward(function, functions.layer(functions.name_of(function)).forward.__get__(function))
    if attention_id is not None and ALL_ATTENTION_FUNCTIONS.get(attention_id) is not _attention_interface():
        ALL_ATTENTION_FUNCTIONS.register(attention_id, _attention_interface())


def _kernel_config(model, names: list):
    """This bundle's layers beside what the model had; transformers applies the mapping again at each ``train()``."""
    from kernels import LocalLayerRepository
    from transformers import KernelConfig

    before, folder = model.kernel_config, integrity.origin().path
    repositories = {name: LocalLayerRepository(folder, layer_name=name) for name in names}
    mapping = {name: dict.fromkeys(("cpu", "cuda", "rocm"), repository) for name, repository in repositories.items()}
    if model.use_kernels:
        inherit = before is None or (before.inherit_mapping and not before.use_local_kernel)
        return KernelConfig({**(before.kernel_mapping if before else {}), **mapping}, inherit_mapping=inherit)
    # An empty entry is no kernel; a missing one makes `kernels` warn about each layer that has none.
    nothing = {functions.name_of(module): {} for module in functions.replaceable(model)}
    return KernelConfig({**nothing, **mapping}, inherit_mapping=False)
