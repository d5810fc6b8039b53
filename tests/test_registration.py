"""What the loaded bundle exports, and which CPU path it took."""

import os

import torch


def test_every_public_name_exists(padfree):
    assert sorted(padfree.__all__) == sorted(set(padfree.__all__))
    for name in padfree.__all__:
        assert getattr(padfree, name) is not None


def test_isa_is_the_one_asked_for(padfree):
    asked = os.environ.get("PADFREE_ISA")
    assert padfree.isa() in ("generic", "avx2", "avx512")
    if asked:
        assert padfree.isa() == asked


def test_loading_changes_no_global_state(padfree):
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
