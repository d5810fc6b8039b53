"""The table of silent leaks: what becomes of a packed batch, family by family, without this bundle and with it."""

import pytest
from claims import CARRIES
from claims_families import FAMILIES
from tiny_models import assert_as_good_as_eager, build, references, run_packed, samples

pytestmark = pytest.mark.usefixtures("one_thread")

WITHOUT = {name: family.without for family in FAMILIES for name in family.names}
WITH = {name: family.with_bundle for family in FAMILIES for name in family.names}
LEAK = 1e-5
"""A leak moves some logit by more than this part of the largest; float32 rounding by a few 1e-7 of it."""


def outcome(model, wanted, drop):
    """``right``, ``refused`` or ``leaks``; fails for anything between right and a leak."""
    try:
        got = run_packed(model, samples(), drop)
    except ValueError:
        return "refused"
    exact = wanted[0][0]
    if (got[0].double() - exact).abs().max() > LEAK * exact.abs().max():
        return "leaks"
    assert_as_good_as_eager(got, wanted, normwise=True)
    return "right"


def outcomes(model, family):
    """One word for each of `CARRIES`."""
    wanted = references(family)
    return tuple(outcome(model, wanted, drop) for drop in CARRIES.values())


@pytest.mark.parametrize("family", WITHOUT)
def test_without_the_bundle(family):
    references(family)
    model = build(family, attention=None).train()
    assert outcomes(model, family) == WITHOUT[family]


@pytest.mark.parametrize("family", WITH)
def test_with_the_bundle(padfree, family):
    references(family)
    model = build(family).train()
    padfree.enable(model)
    try:
        assert outcomes(model, family) == WITH[family]
    finally:
        padfree.disable(model)


def test_every_family_has_a_row():
    from tiny_models import FAMILIES as PLAIN
    from tiny_models import HYBRIDS

    assert sorted(WITHOUT) == sorted({**PLAIN, **HYBRIDS})
