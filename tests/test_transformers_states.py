"""Recurrent states in decoding: a wired model moves those of its own cache on in place, and no other tensor."""

import copy

import pytest
import torch
from delta_case import forward_only, inputs
from tiny_models import build, samples
from tolerance import assert_same_bits

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = {"head": "fused_recurrent_gated_delta_rule", "channel": "fused_recurrent_kda"}
GATES = pytest.mark.parametrize("gate", LAYERS)


@pytest.fixture(params=["qwen3_next", "qwen3_5", "olmo_hybrid", "kimi_linear", "bailing_hybrid"])
def prefilled(padfree, request):
    """A wired model in inference mode, and the cache of a prompt."""
    model = build(request.param).eval()
    assert padfree.enable(model).not_wired == {}
    with torch.no_grad():
        yield model, model(input_ids=samples((7,))[0][None], use_cache=True).past_key_values
    padfree.disable(model)


def states_of(cache):
    return [state for layer in cache.layers for state in getattr(layer, "recurrent_states", {}).values()]


def step(model, cache, monkeypatch):
    """Logits of one more token, and the tensors that came back to the cache."""
    returned = []
    for layer in cache.layers:
        if hasattr(layer, "update_recurrent_state"):
            update = layer.update_recurrent_state
            monkeypatch.setattr(
                layer,
                "update_recurrent_state",
                lambda new, *args, update=update, **kwargs: (returned.append(new), update(new, *args, **kwargs))[1],
            )
    logits = model(input_ids=torch.tensor([[5]]), past_key_values=cache, use_cache=True).logits
    return logits, returned


def test_the_cache_is_moved_on_in_place(padfree, prefilled, monkeypatch):
    model, cache = prefilled
    other, before = copy.deepcopy(cache), [state.clone() for state in states_of(cache)]
    logits, returned = step(model, cache, monkeypatch)
    assert before, "the model must have states"
    assert [id(state) for state in returned] == [id(state) for state in states_of(cache)]

    monkeypatch.setattr(padfree.boundaries, "is_cached", lambda state: False)
    wanted, fresh = step(model, other, monkeypatch)
    assert not {state.data_ptr() for state in fresh} & {state.data_ptr() for state in states_of(other)}
    assert_same_bits(logits, wanted, "logits")
    for got, aside, old in zip(states_of(cache), states_of(other), before, strict=True):
        assert_same_bits(got, aside, "state")
        assert not torch.equal(got, old)


def test_with_autograd_states_are_new(prefilled, monkeypatch):
    model, cache = prefilled
    with torch.enable_grad():
        _, returned = step(model, cache, monkeypatch)
    assert not {state.data_ptr() for state in returned} & {state.data_ptr() for state in states_of(cache)}


def arguments(gate, dtype=torch.float32):
    case = forward_only(inputs([1], gate, heads=(2, 2), dtype=dtype))
    names = {"q": "query", "k": "key", "v": "value"}
    return {names.get(name, name): x for name, x in case.items()}


@GATES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_state_of_no_cache_stays(padfree, prefilled, gate, dtype):
    """Called outside of any forward, and while a model is computed whose cache does not hold the state."""
    case = arguments(gate, dtype)
    case["beta"] = case["beta"].to(dtype)
    layer, before = getattr(padfree.layers, LAYERS[gate])(), case["initial_state"].clone()
    public = getattr(padfree, LAYERS[gate])
    q, k, v = (case[name] for name in ("query", "key", "value"))
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    rest = {"g": case["g"], "beta": case["beta"], "initial_state": case["initial_state"]}
    wanted = public(q, k, v, **rest, **options)
    model, cache = prefilled
    found = [layer(**case, **options)]
    hook = model.get_input_embeddings().register_forward_hook(lambda *_: found.append(layer(**case, **options)))
    model(input_ids=torch.tensor([[5]]), past_key_values=cache, use_cache=True)
    hook.remove()
    assert len(found) == 2
    for out, state in found:
        assert_same_bits(out, wanted[0], "out")
        assert_same_bits(state, wanted[1], "state")
    assert_same_bits(case["initial_state"], before, "initial_state")


@GATES
def test_what_the_op_refuses_goes_the_long_way(padfree, gate):
    """A state of 16 bits, which the public function widens; and an error in its words."""
    layer, case = getattr(padfree.layers, LAYERS[gate])(), arguments(gate)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    with torch.no_grad():
        narrow = case["initial_state"].bfloat16()
        got = layer(**{**case, "initial_state": narrow}, **options)
        wanted = layer(**{**case, "initial_state": narrow.float()}, **options)
        assert_same_bits(got[1], wanted[1], "state")
        with pytest.raises(ValueError, match=rf"^{LAYERS[gate]}: k must have the shape of q \(1, 1, 2, 16\), got "):
            layer(**{**case, "key": case["key"][:, :, :1]}, **options)


@GATES
def test_a_gate_of_the_other_form_is_refused(padfree, gate):
    """The op takes both forms, a layer its own alone."""
    layer, case = getattr(padfree.layers, LAYERS[gate])(), arguments(gate)
    (other,) = (form for form in LAYERS if form != gate)
    wanted = {"head": r"g must have shape \(1, 1, 2\), got", "channel": r"g must have shape \(1, 1, 2, 16\), got"}
    with torch.no_grad(), pytest.raises(ValueError, match=rf"^{LAYERS[gate]}: {wanted[gate]}"):
        layer(**{**case, "g": arguments(other)["g"]}, output_final_state=True, use_qk_l2norm_in_kernel=True)
