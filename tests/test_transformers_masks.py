"""Models on `register_masked_attention`: the logits and gradients of eager code, under masks no flash kernel sees."""

import pytest
import reference
import torch
import transformers
from tiny_models import build, samples
from tolerance import assert_close, assert_near, rounded
from transformers.masking_utils import create_causal_mask

LENGTH = 20


@pytest.fixture(scope="module")
def name(padfree):
    return padfree.register_masked_attention()


def run(family, attention, dtype, mask_function=None, padding=0):
    """Logits and the gradient of the embeddings, with ``padding`` tokens at the right of the second row.

    At the left, or past a window of 4, they would have no key to see: eager code in float64 gives NaN for such rows.
    """
    model = build(family, dtype, attention).train()
    ids = torch.stack(samples((LENGTH, LENGTH)))
    mask = torch.ones_like(ids)
    mask[1, LENGTH - padding :] = 0
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    if mask_function is not None:
        mask = create_causal_mask(model.config, embeddings, mask, None, **mask_function, allow_is_causal_skip=False)
    logits = model(inputs_embeds=embeddings, attention_mask=mask, use_cache=False).logits
    seen = logits.masked_fill((torch.arange(LENGTH) >= torch.tensor([[LENGTH], [LENGTH - padding]]))[..., None], 0.0)
    weights = torch.randn(seen.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    (gradient,) = torch.autograd.grad((seen * weights).sum(), embeddings)
    return seen.detach(), gradient


def compare(family, name, dtype=torch.float32, **arguments):
    wanted = run(family, "eager", torch.float64, **arguments)
    eager = run(family, "eager", dtype, **arguments)
    got = run(family, name, dtype, **arguments)
    for what, *values in zip(("logits", "gradient"), got, wanted, eager, strict=True):
        assert_near(*values, what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gpt_oss", "inkling"])
def test_equals_eager(name, family, padding, dtype):
    compare(family, name, dtype, padding=padding)


def prefix(batch, head, query, key):
    return key < 7


def even_distance(batch, head, query, key):
    return (query - key) % 2 == 0


MASK_FUNCTIONS = {"or": {"or_mask_function": prefix}, "and": {"and_mask_function": even_distance}}


@pytest.mark.parametrize("function", MASK_FUNCTIONS.values(), ids=MASK_FUNCTIONS)
def test_mask_functions_are_honoured(name, function):
    """A bidirectional prefix and a pattern with holes: flash-type kernels ignore both."""
    plain = run("llama", "eager", torch.float64)[0]
    changed = run("llama", "eager", torch.float64, mask_function=function)[0]
    assert (plain - changed).abs().max() > 0.01
    compare("llama", name, mask_function=function)


def test_block_of_tokens_that_see_each_other(name):
    blocks = torch.full((2, LENGTH), -1)
    blocks[:, 4:11] = 0
    compare("llama", name, mask_function={"block_sequence_ids": blocks})


def test_bidirectional(name):
    made = {}
    for attention, dtype in (("eager", torch.float64), ("eager", torch.float32), (name, torch.float32)):
        model = build("llama", dtype, attention).eval()
        model.config.is_causal = False
        ids = torch.stack(samples((LENGTH, LENGTH)))
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
        made[attention, dtype] = model(input_ids=ids, use_cache=False).logits.detach()
    assert_near(made[name, torch.float32], made["eager", torch.float64], made["eager", torch.float32], "logits")


def test_sinks(name):
    """gpt-oss: one learned sink a head, sliding and full layers; its gradient as well."""
    settings = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "head_dim": 8}
    made = {}
    for attention, dtype in (("eager", torch.float64), ("eager", torch.float32), (name, torch.float32)):
        torch.manual_seed(0)
        config = transformers.GptOssConfig(
            **settings, num_key_value_heads=2, num_hidden_layers=2, num_local_experts=2, num_experts_per_tok=1,
            sliding_window=4, attn_implementation=attention,
            experts_implementation="eager",
        )  # fmt: skip
        model = transformers.GptOssForCausalLM(config).to(dtype)
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks, generator=torch.Generator().manual_seed(3))
        logits = model(input_ids=torch.stack(samples((LENGTH, LENGTH))), use_cache=False).logits
        logits.square().sum().backward()
        made[attention, dtype] = logits.detach(), model.model.layers[0].self_attn.sinks.grad
    got, wanted, eager = made[name, torch.float32], made["eager", torch.float64], made["eager", torch.float32]
    for what, *values in zip(("logits", "gradient of sinks"), got, wanted, eager, strict=True):
        assert_near(*values, what)


@pytest.mark.parametrize(
    ("family", "padding", "caches"),
    [
        ("gemma2", 4, ("dynamic", "static")),
        ("gpt_oss", 0, ("dynamic", "static")),
        ("gpt_oss", 4, ("dynamic", "static")),
        ("inkling", 4, ("dynamic",)),
    ],
)
def test_generate_equals_eager(name, family, padding, caches):
    """Without padding there is no mask, and an empty static cache is longer than the prompt."""
    ids = torch.stack(samples((9, 9)))
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    tokens = []
    for attention in ("eager", name):
        for cache in caches:
            model = build(family, torch.float32, attention).eval()
            settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            tokens.append(
                model.generate(ids, attention_mask=mask, cache_implementation=cache, disable_compile=True, **settings)
            )
    for other in tokens[1:]:
        assert torch.equal(other, tokens[0])


def test_learned_position_bias(padfree, name):
    """A bias beside the mask, as T5 has it: added where the mask lets a key through, and differentiable."""
    from transformers import AttentionInterface

    attend = AttentionInterface()[name]
    q, k, v = (torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(s)) for s in range(3))
    module = torch.nn.Module()
    bias = torch.randn(1, 4, 9, 9, generator=torch.Generator().manual_seed(5)).requires_grad_()
    mask = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(6)) > 0.3
    out, _ = attend(module, q, k, v, mask, position_bias=bias)
    (got,) = torch.autograd.grad(out.sum(), bias)
    both = torch.where(mask, bias, float("-inf"))
    turned = (t.transpose(1, 2) for t in (q, k, v))
    oracle = reference.attention(*turned, mask=both.detach(), dout=torch.ones_like(out))
    assert_close(out, *oracle["out"], "out")
    value, allowance = (x.sum(0, keepdim=True) for x in oracle["dmask"])  # the bias is one for the whole batch
    assert_close(got, value, rounded(value, allowance, got.dtype), "gradient")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("my_flash", ValueError, "name must be without 'flash' and not empty, got 'my_flash'"),
        ("", ValueError, "name must be without 'flash' and not empty, got ''"),
        (None, TypeError, "name must be a string, got NoneType"),
    ],
)
def test_wrong_name(padfree, name, kind, text):
    with pytest.raises(kind) as error:
        padfree.register_masked_attention(name)
    assert str(error.value) == f"register_masked_attention: {text}"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"output_attentions": True}, "output_attentions must be False, got True (use eager)"),
        ({"cache": object()}, "cache must be None, got a paged cache (use a flash attention name)"),
    ],
)
def test_what_it_cannot_give(name, argument, text):
    from transformers import AttentionInterface

    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(NotImplementedError) as error:
        AttentionInterface()[name](torch.nn.Module(), q, q, q, None, **argument)
    assert str(error.value) == f"masked attention: {text}"
