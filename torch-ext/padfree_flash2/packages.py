"""The route by package name: ``import flash_attn``, ``causal_conv1d``, ``fla`` or ``mamba_ssm`` finds this bundle.

For code that imports the original packages and knows nothing of `kernels`. transformers does so too, once, when a
modelling file is imported; that is why this comes first or not at all. `enable` needs none of it.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import bert_padding, flash_attention_3, rotary
from .functions import MIXES

_PACKAGE = __name__.rpartition(".")[0]

_CONV = ("causal_conv1d_fn", "causal_conv1d_update")
_DELTA = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
_KDA = ("chunk_kda", "fused_recurrent_kda")
_SCAN = ("selective_scan_fn", "mamba_inner_fn")
_SSD = ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")
_FLASH = (
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
)

# Where the original packages keep what this bundle has under the same name and signature.
_HOMES = {
    "causal_conv1d": (*_CONV, "causal_conv1d_varlen_states"),
    "causal_conv1d.causal_conv1d_interface": _CONV,
    "causal_conv1d.causal_conv1d_varlen": ("causal_conv1d_varlen_states",),
    "flash_attn": _FLASH,
    "flash_attn.flash_attn_interface": _FLASH,
    "flash_attn.bert_padding": tuple(bert_padding.__all__),
    "flash_attn.layers": (),
    "flash_attn.layers.rotary": tuple(name for name in rotary.__all__ if name != "apply_rotary"),
    "flash_attn.ops": (),
    "flash_attn.ops.triton": (),
    "flash_attn.ops.triton.rotary": ("apply_rotary",),
    "flash_attn_interface": tuple(flash_attention_3.__all__),
    "fla": (),
    "fla.ops": (*_DELTA, *_KDA),
    "fla.ops.gated_delta_rule": _DELTA,
    "fla.ops.gated_delta_rule.chunk": _DELTA[:1],
    "fla.ops.gated_delta_rule.fused_recurrent": _DELTA[1:],
    "fla.ops.kda": _KDA,
    "fla.ops.kda.chunk": _KDA[:1],
    "fla.ops.kda.fused_recurrent": _KDA[1:],
    "mamba_ssm": _SCAN,
    "mamba_ssm.ops": (),
    "mamba_ssm.ops.selective_scan_interface": _SCAN,
    "mamba_ssm.ops.triton": (),
    "mamba_ssm.ops.triton.ssd_combined": _SSD,
    "mamba_ssm.ops.triton.selective_state_update": ("selective_state_update",),
}

# Modules of this bundle that hold a home's functions, where the bundle itself does not.
_MODULES = {
    "flash_attn.bert_padding": bert_padding,
    "flash_attn.layers.rotary": rotary,
    "flash_attn.ops.triton.rotary": rotary,
    "flash_attn_interface": flash_attention_3,
}

# The releases whose signatures the functions keep; callers compare these numbers.
_VERSIONS = {
    "causal_conv1d": "1.7.0",
    "fla": "0.6.0",
    "flash_attn": "2.8.3",
    "flash_attn_interface": "3.0.0",
    "mamba_ssm": "2.3.2",
}


def install_as_packages(packages: Sequence[str] = tuple(_VERSIONS), active: bool = True) -> list[str]:
    """Let the original packages' names import this bundle's functions, in this process.

    The functions keep those packages' signatures (``seq_idx`` is fourth in ``causal_conv1d_fn``). Boundaries follow the
    original's rules as well: transformers passes ``seq_idx`` on, and nothing looks for a batch that lacks it. What a
    package has and this bundle does not raises ImportError with its name; ``importlib.util.find_spec`` does not see it.

    ``flash_attn`` and ``flash_attn_interface`` (FlashAttention 3) are for code that imports them itself. transformers
    counts only installed distributions, and goes on as before: `back_flash_attention` or `enable` are for its models.

    Args:
        packages: of ``causal_conv1d``, ``fla``, ``flash_attn``, ``flash_attn_interface`` and ``mamba_ssm``, those to
            serve; all or none of them.
        active: False takes the names away again; modules imported meanwhile keep what they got.

    Returns:
        The module names that now lead here.

    Raises:
        TypeError: packages is one name rather than several.
        ValueError: a package is none of these.
        RuntimeError: one of the packages is installed, or transformers has imported a modelling file that asks for one
            (it has chosen already).
    """
    if isinstance(packages, str):
        raise TypeError(f"install_as_packages: packages must be a sequence of names, got {packages!r}")
    packages = tuple(dict.fromkeys(packages))
    unknown = sorted(set(packages) - set(_VERSIONS))
    if unknown:
        raise ValueError(f"install_as_packages: packages must be of {', '.join(_VERSIONS)}, got {', '.join(unknown)}")
    homes = [home for home in _HOMES if home.partition(".")[0] in packages]
    if not active:
        for home in homes:
            if _is_ours(sys.modules.get(home)):
                del sys.modules[home]
        sys.meta_path[:] = [f for f in sys.meta_path if not (isinstance(f, _Absent) and f.root in packages)]
        return []
    for root in packages:
        _require_free(root)
    names = {name for home in homes for name in _HOMES[home]}
    chosen = sorted(name for name, module in list(sys.modules.items()) if _has_chosen(name, module, names))
    if chosen and not all(_is_ours(sys.modules.get(root)) for root in packages):
        raise RuntimeError(
            f"install_as_packages: must come before transformers imports {', '.join(chosen)}, which chose its "
            "functions already. Call it first, or use enable(model)"
        )
    for home in homes:
        _install(home)
    served = {finder.root for finder in sys.meta_path if isinstance(finder, _Absent)}
    sys.meta_path[:0] = [_Absent(root) for root in packages if root not in served]
    return sorted(homes)


def _install(home: str) -> None:
    bundle = sys.modules[_PACKAGE]
    module = ModuleType(home, f"This name is served by {_PACKAGE}.")
    module.__spec__ = ModuleSpec(home, None, origin=bundle.__file__, is_package=True)
    module.__file__, module.__path__ = bundle.__file__, []
    functions = {name: getattr(_MODULES.get(home, bundle), name) for name in _HOMES[home]}
    vars(module).update(functions, _padfree=_PACKAGE)
    sys.modules[home] = module
    parent, _, child = home.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    else:
        module.__version__ = _VERSIONS[home]


class _Absent:
    """Finder that names what the original package has and this bundle does not, in place of 'no module named'."""

    def __init__(self, root: str):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        # `find_spec` of importlib.util asks what there is, and shall hear None; an import shall hear why there is not.
        asks = sys._getframe(2).f_code is importlib.util.find_spec.__code__
        if asks or not name.startswith(f"{self.root}."):
            return
        raise ModuleNotFoundError(
            f"{name} is not in padfree-flash2 ({_PACKAGE}), which serves {self.root} since install_as_packages(): "
            f"{', '.join(home for home in _HOMES if home.partition('.')[0] == self.root)}",
            name=name,
        )


def _is_ours(module) -> bool:
    return getattr(module, "_padfree", None) == _PACKAGE


def _require_free(root: str) -> None:
    """Raise if somebody else answers to a package's name."""
    loaded = sys.modules.get(root)
    if _is_ours(loaded):
        return
    spec = importlib.util.find_spec(root) if loaded is None else None
    if loaded is not None or spec is not None:
        where = getattr(loaded, "__file__", None) or getattr(spec, "origin", None) or "a module without a file"
        raise RuntimeError(f"install_as_packages: {root} must not be installed, got {where}")


def _has_chosen(name: str, module, names: set) -> bool:
    """Whether a modelling file of transformers has chosen an implementation for one of these functions."""
    if not name.startswith("transformers.models."):
        return False
    asked = names & set(MIXES)
    found = (getattr(type(value), "kernel_layer_name", key) for key, value in vars(module).items())
    return any(each in asked for each in found)
