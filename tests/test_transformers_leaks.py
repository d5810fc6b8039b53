"""The table of silent leaks: what becomes of a packed batch, family by family, without this bundle and with it."""

import pytest
from claims import CARRIES
from claims_families import FAMILIES
from tiny_models import assert_as_good_as_eager, build, references, run_packed, samples

pytestmark = pytest.mark.usefixtures("one_thread")

WITHOUT = {name: family.without for family in FAMILIES for name in family.names}
WITH = {name: (family.with_bundle, family.layers) for family in FAMILIES for name in family.names}
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
    assert_as_good_as_eager(got, wanted)
    return "right"


def outcomes(model, family):
    """One word for each of `CARRIES`."""
    wanted = references(family)
    return tuple(outcome(model, wanted, drop) for drop in CARRIES.values())


STEPS = {
    "causal_conv1d_update",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "selective_state_update",
}
"""Of decoding: they see one token of each sample, and no boundaries."""


def layers(report):
    """What ``enable`` made of attention, convolution and recurrence: ``here``, ``torch``, or nothing where none is."""
    made = dict.fromkeys(report.wired, "here") | dict.fromkeys(report.not_wired, "torch")
    recurrences = [word for name, word in made.items() if name not in {"attention", "causal_conv1d_fn", *STEPS}]
    recurrence = "torch" if "torch" in recurrences else "here" if recurrences else ""
    return made.get("attention", ""), made.get("causal_conv1d_fn", ""), recurrence


@pytest.mark.parametrize("family", WITHOUT)
def test_without_the_bundle(family):
    references(family)
    model = build(family, attention=None).train()
    assert outcomes(model, family) == WITHOUT[family]


@pytest.mark.parametrize("family", WITH)
def test_with_the_bundle(padfree, family):
    references(family)
    model = build(family).train()
    report = padfree.enable(model)
    try:
        assert (outcomes(model, family), layers(report)) == WITH[family]
    finally:
        padfree.disable(model)


def test_every_family_has_a_row():
    from tiny_models import FAMILIES as PLAIN
    from tiny_models import HYBRIDS

    assert sorted(WITHOUT) == sorted({**PLAIN, **HYBRIDS})
