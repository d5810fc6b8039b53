"""The repository id transformers asks for when it wants attention, and how that id comes to mean this folder.

transformers loads attention by ``org/repo``, again at each switch between two kernels, each time with a look-up on the
Hub and a question of trust. An entry in ``LOCAL_KERNELS`` answers both inside this process: the id resolves to the
folder the bundle was loaded from, which `kernels` already holds as a module.
"""

import os
import sys

from . import integrity

DEFAULT_ID = "padfree/padfree-flash2"

_VARIABLE = "LOCAL_KERNELS"
_PACKAGE = __name__.rpartition(".")[0]

# transformers' names for the flash-attention packages, and the repository a model is sent to that accepts no other.
_BACKED = ("flash_attention_2", "flash_attention_3")
COMPATIBLE = "kernels-community/vllm-flash-attn3"

_claims: dict[str, int] = {}
_backed: dict[str, str] = {}


def attention_id(model=None) -> str:
    """The id under which transformers shall know this bundle's attention.

    The one it was fetched by; `DEFAULT_ID` for a local folder, or where the name lacks what transformers reads out of a
    flash kernel's name (``flash`` and then ``2`` or ``3``: without them a static cache gives wrong logits). A second
    copy of the bundle, which finds the id taken by another folder, goes by its unique module name. A model that
    transformers would send to `COMPATIBLE` from any other flash kernel takes that name.
    """
    from transformers.utils.generic import is_flash_attention_requested

    accepted = getattr(model, "_compatible_flash_implementations", None) or ()
    repo_id = integrity.origin().repo_id or DEFAULT_ID
    if COMPATIBLE in accepted and repo_id not in accepted:
        return COMPATIBLE
    if not is_flash_attention_requested(requested_attention_implementation=repo_id, version=[2, 3]):
        repo_id = DEFAULT_ID
    if repo_id in _entries() and not _is_this_bundle(repo_id):
        return f"padfree/{_PACKAGE}"
    return repo_id


def claim(repo_id: str) -> None:
    """Let ``repo_id`` mean this bundle in this process until `release` is called as often.

    Raises:
        ValueError: the folder's path holds a ``:``, which ``LOCAL_KERNELS`` cannot express.
    """
    entries = _entries()
    if repo_id not in entries:
        path = str(integrity.origin().path)
        if ":" in path:
            raise ValueError(f"enable: the bundle's folder must have no ':' in its path, got {path}")
        _write({**entries, repo_id: path})
        _claims[repo_id] = 0
    if repo_id in _claims:  # an entry the user made stays his
        _claims[repo_id] += 1


def release(repo_id: str) -> None:
    """Undo one `claim`."""
    if repo_id not in _claims:
        return
    _claims[repo_id] -= 1
    if _claims[repo_id] == 0:
        del _claims[repo_id]
        entries = _entries()
        entries.pop(repo_id, None)
        _write(entries)


def _entries() -> dict[str, str]:
    text = os.environ.get(_VARIABLE, "")
    return dict(_pair(entry) for entry in text.split(":") if entry)


def _pair(entry: str) -> tuple[str, str]:
    repo_id, _, path = entry.partition("=")
    return repo_id, path


def _write(entries: dict[str, str]) -> None:
    if entries:
        os.environ[_VARIABLE] = ":".join(f"{repo_id}={path}" for repo_id, path in entries.items())
    else:
        os.environ.pop(_VARIABLE, None)


def _is_this_bundle(repo_id: str) -> bool:
    import kernels

    backend = "cpu" if integrity.metadata()["backend"]["type"] == "cpu" else None
    try:
        return kernels.get_kernel(repo_id, version=1, backend=backend) is sys.modules[_PACKAGE]
    except FileNotFoundError:
        return False


def back_flash_attention(active: bool = True) -> None:
    """Let ``attn_implementation="flash_attention_2"`` and ``"flash_attention_3"`` mean this bundle, process-wide.

    transformers sends these names to a repository of its own where the package is not installed; they are pointed at
    this bundle instead. So is ``kernels-community/vllm-flash-attn3``, to which transformers sends models that accept no
    other flash kernel (gpt-oss). Needs no network. Models loaded before keep what they have.

    Args:
        active: False restores what was there before.

    Raises:
        RuntimeError: ``flash_attn`` (or its version 3) is installed; transformers then uses it and asks nobody.
    """
    from transformers import modeling_flash_attention_utils as flash
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    table = flash.FLASH_ATTN_KERNEL_FALLBACK
    if not active:
        if _backed:
            table.update((name, _backed.pop(name)) for name in _BACKED)
            release(_backed.pop("id"))
            release(COMPATIBLE)
            flash._loaded_implementation = None  # the next use looks the name up again
        return
    if is_flash_attn_2_available() or is_flash_attn_3_available():
        raise RuntimeError(
            "back_flash_attention: flash_attn must not be installed, got a version transformers prefers to any kernel. "
            f'Use attn_implementation="{DEFAULT_ID}" or enable(model) instead'
        )
    if not _backed:
        repo_id = attention_id()
        claim(repo_id)
        claim(COMPATIBLE)
        _backed.update({name: table[name] for name in _BACKED}, id=repo_id)
        table.update(dict.fromkeys(_BACKED, repo_id))
        flash._loaded_implementation = None
