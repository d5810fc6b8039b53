"""Generation on a wired model gives eager code's tokens: both kinds of cache, left padding, beams, prompts in parts."""

import functools

import pytest
import torch
from tiny_models import FAMILIES, HYBRIDS, build, left_padded, samples
from tolerance import assert_near

pytestmark = pytest.mark.usefixtures("one_thread")

NEW_TOKENS = 6
ROWS = samples((9, 4, 12))

EVEN = samples((9, 9))

# transformers 5.22.2 by itself cannot generate with Inkling's sliding layers on a static cache: mask and keys differ in
# length there.
CASES = [
    (family, cache)
    for family in (*FAMILIES, *HYBRIDS)
    for cache in ("dynamic", "static")
    if (family, cache) != ("inkling", "static")
]

# Beams put a cache's rows in another order at each step; a part of a prompt begins with the states of the one before.
WAYS = {"beams": {"num_beams": 3}, "parts": {"prefill_chunk_size": 4}}
REFUSED = {(family, "parts") for family in ("mamba", "falcon_mamba", "mamba2")}  # by transformers: no keys in the cache


@pytest.fixture(params=[*FAMILIES, *HYBRIDS])
def family(request):
    return request.param


@pytest.fixture
def model(padfree, family):
    """A wired model in inference mode."""
    for dtype in (torch.float64, torch.float32):  # before the family's functions are replaced
        _alone(family, dtype), _eager(family, dtype, "beams"), _eager(family, dtype, "parts")
    made = build(family).eval()
    padfree.enable(made)
    yield made
    padfree.disable(made)


def _generate(model, rows, **arguments):
    """New tokens ``(rows, NEW_TOKENS)`` and their logits ``(NEW_TOKENS, rows, vocabulary)``; with beams of each one."""
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **arguments}
    settings.update(output_logits=True, return_dict_in_generate=True, disable_compile=True)
    out = model.generate(**left_padded(rows), **settings)
    return out.sequences[:, -NEW_TOKENS:], torch.stack(out.logits)


@functools.cache
def _alone(family, dtype):
    """What eager code generates for each row by itself, without padding (padded float64 rows are NaN there)."""
    model = build(family, dtype).eval()
    tokens, logits = zip(*(_generate(model, [row]) for row in ROWS), strict=True)
    with torch.no_grad():
        prompts = [model(input_ids=row[None], use_cache=False).logits[0] for row in ROWS]
    return torch.cat(tokens), torch.cat(logits, 1), prompts


@functools.cache
def _eager(family, dtype, way):
    """What eager code generates without padding: by ``WAYS[way]``."""
    if (family, way) in REFUSED:
        return None
    return _generate(build(family, dtype).eval(), EVEN, **WAYS[way])


@pytest.mark.parametrize(("family", "cache"), CASES)
def test_generate_with_left_padding(model, family, cache):
    tokens, logits = _generate(model, ROWS, cache_implementation=cache)
    wanted_tokens, wanted, _ = _alone(family, torch.float64)
    _, eager, _ = _alone(family, torch.float32)
    assert torch.equal(tokens, wanted_tokens)
    assert_near(logits, wanted, eager, "logits")


@pytest.mark.parametrize(
    ("family", "way"),
    [(family, way) for family in (*FAMILIES, *HYBRIDS) for way in WAYS if (family, way) not in REFUSED],
)
def test_other_ways_through_the_cache(model, family, way):
    tokens, logits = _generate(model, EVEN, **WAYS[way])
    wanted_tokens, wanted = _eager(family, torch.float64, way)
    assert torch.equal(tokens, wanted_tokens)
    assert_near(logits, wanted, _eager(family, torch.float32, way)[1], "logits")


def test_padded_rows_equal_their_own(model, family):
    """One forward over left-padded rows, with the positions `generate` makes of the mask."""
    batch = left_padded(ROWS)
    positions = (batch["attention_mask"].cumsum(-1) - 1).masked_fill(batch["attention_mask"] == 0, 1)
    with torch.no_grad():
        padded = model(**batch, position_ids=positions, use_cache=False).logits
    wanted, eager = (_alone(family, dtype)[2] for dtype in (torch.float64, torch.float32))
    for row, got, exact, other in zip(ROWS, padded, wanted, eager, strict=True):
        assert_near(got[-len(row) :], exact, other, f"row of {len(row)}")
