"""The route by package name: ``import causal_conv1d`` finds this bundle.

For code that imports the original packages and knows nothing of `kernels`. transformers does so too, once, when a
modelling file is imported; that is why this comes first or not at all. `enable` needs none of it.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from .functions import KEYWORDS

_PACKAGE = __name__.rpartition(".")[0]

# Where the original packages keep what this bundle has under the same name and signature.
_HOMES = {
    "causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update"),
    "causal_conv1d.causal_conv1d_interface": ("causal_conv1d_fn", "causal_conv1d_update"),
}


def install_as_packages() -> list[str]:
    """Let the original packages' names import this bundle's functions, in this process.

    The functions keep those packages' signatures (``seq_idx`` is fourth in ``causal_conv1d_fn``). Boundaries follow the
    original's rules as well: transformers passes ``seq_idx`` on, and nothing looks for a batch that lacks it.

    Returns:
        The module names that now lead here.

    Raises:
        RuntimeError: one of the packages is installed, or transformers has imported a modelling file that asks for one
            (it has chosen already).
    """
    bundle = sys.modules[_PACKAGE]
    homes = {
        home: {name: getattr(bundle, name) for name in names if hasattr(bundle, name)} for home, names in _HOMES.items()
    }
    roots = sorted({home.partition(".")[0] for home in homes})
    for root in roots:
        _require_free(root)
    chosen = [name for name, module in list(sys.modules.items()) if _has_chosen(name, module)]
    if chosen:
        raise RuntimeError(
            f"install_as_packages: must come before transformers imports {', '.join(sorted(chosen))}, which chose its "
            "functions already. Call it first, or use enable(model)"
        )
    for home, names in homes.items():
        module = ModuleType(home, f"This name is served by {_PACKAGE}.")
        module.__spec__ = ModuleSpec(home, None, origin=bundle.__file__, is_package=home in roots)
        module.__path__ = []
        vars(module).update(names, _padfree=_PACKAGE)
        sys.modules[home] = module
        parent, _, child = home.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    return sorted(homes)


def _require_free(root: str) -> None:
    """Raise if somebody else answers to a package's name."""
    loaded = sys.modules.get(root)
    if loaded is not None and getattr(loaded, "_padfree", None) == _PACKAGE:
        return
    if loaded is not None or importlib.util.find_spec(root) is not None:
        where = getattr(loaded, "__file__", None) or importlib.util.find_spec(root).origin
        raise RuntimeError(f"install_as_packages: {root} must not be installed, got {where}")


def _has_chosen(name: str, module) -> bool:
    return name.startswith("transformers.models.") and any(key in vars(module) for key in KEYWORDS)
