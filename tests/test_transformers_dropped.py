"""Models that drop the boundaries on the way to their mixers: right in the forward, a recomputation and a graph.

Mamba, Falcon Mamba, Jamba and Mamba2ForCausalLM pass neither ``seq_idx`` nor ``cu_seq_lens_q`` on, Zamba passes
``seq_idx`` to its convolution only. A recomputation runs when the forward is over, so each test of it has another batch
come in between.
"""

import os
import threading

import pytest
import torch
import torch._dynamo.testing
from tiny_models import build, pack, run_packed, samples
from tolerance import assert_same_bits
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

DROPPING = ["mamba", "falcon_mamba", "mamba2", "jamba", "zamba"]
OTHER_LENGTHS = (4, 8, 2, 15, 6)  # as many tokens as tiny_models.LENGTHS, cut elsewhere


@pytest.fixture(params=DROPPING)
def wired(padfree, request):
    """A wired model in training mode."""
    model = build(request.param).train()
    padfree.enable(model)
    yield model
    padfree.disable(model)


def _loss(model, rows):
    logits = model(**pack(rows)).logits
    return (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()


def _gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _assert_same(got, wanted):
    for name, gradient in wanted.items():
        assert_same_bits(got[name], gradient, name)


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
def test_a_recomputed_layer_has_the_boundaries_of_its_own_batch(padfree, wired, reentrant):
    rows, others = samples(), samples(OTHER_LENGTHS)
    wanted = [_gradients(wired, _loss(wired, each)) for each in (rows, others)]
    wired.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    wired.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_())
    losses = [_loss(wired, rows), _loss(wired, others)]  # both forwards before the first backward
    _assert_same(_gradients(wired, losses[0]), wanted[0])
    _assert_same(_gradients(wired, losses[1]), wanted[1])
    padfree.disable(wired)
    for module in wired.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        assert "padfree" not in type(function).__module__


def test_a_recomputation_by_anybody_else_is_refused(wired):
    """It would compute one long sample, without an error."""
    layers = wired.base_model.layers
    for index, layer in enumerate(layers):
        layers[index] = _Checkpointed(layer)
    loss = _loss(wired, samples())
    with pytest.raises(
        ValueError, match="recomputed in the backward, where the boundaries of its packed batch are lost"
    ):
        loss.backward()


class _Checkpointed(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return checkpoint(self.layer, *args, use_reentrant=False, **kwargs)


def test_the_base_model_by_itself(wired):
    wanted = wired(**pack(samples()), output_hidden_states=True).hidden_states[-1]
    got = wired.base_model(**pack(samples())).last_hidden_state
    assert_same_bits(got, wanted, "hidden states")


def test_threads_have_batches_of_their_own(wired):
    """Two forwards of one model at once, each waiting in its first layer for the other to arrive there."""
    batches, logits = [samples(), samples(OTHER_LENGTHS)], {}
    wanted = [wired(**pack(rows)).logits.detach() for rows in batches]
    barrier = threading.Barrier(2, timeout=60)

    def meet(*_):
        barrier.wait()

    handle = wired.base_model.layers[0].register_forward_pre_hook(meet)

    def run(index):
        logits[index] = wired(**pack(batches[index])).logits.detach()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.remove()
    for index in range(2):
        assert_same_bits(logits[index], wanted[index], f"thread {index}")


def test_an_error_leaves_no_boundaries_behind(wired):
    """The next batch of as many tokens is one sample, called without keywords."""
    row = torch.cat(samples())
    wanted = wired(input_ids=row[None], use_cache=False).logits
    handle = wired.base_model.layers[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wired(**pack(samples()))
    handle.remove()
    assert_same_bits(wired(input_ids=row[None], use_cache=False).logits, wanted, "logits")


@pytest.mark.parametrize("drop", [("seq_idx",), ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")])
def test_either_keyword_is_enough(wired, drop):
    wanted, gradients = run_packed(wired, samples())
    if wired.config.model_type == "zamba" and "cu_seq_lens_q" in drop:  # its attention has no position_ids to follow
        with pytest.raises(ValueError, match="drops its boundary keywords on the way to attention"):
            run_packed(wired, samples(), drop)
        return
    got, got_gradients = run_packed(wired, samples(), drop)
    assert_same_bits(got, wanted, "logits")
    _assert_same(got_gradients, gradients)


def test_without_the_check_they_arrive_as_well(padfree, wired):
    wanted = wired(**pack(samples())).logits
    padfree.enable(wired, check_boundaries=False)
    assert_same_bits(wired(**pack(samples())).logits, wanted, "logits")


@pytest.mark.skipif(
    os.environ.get("PADFREE_ISA") == "generic" and torch.backends.cpu.get_cpu_capability() != "DEFAULT",
    reason="tracing is the same on every instruction set, and slow",
)
@pytest.mark.parametrize("wired", ["mamba2", "jamba"], indirect=True)
def test_in_a_compiled_graph(wired):
    """The entrance is traced with the model: new boundaries and lengths do not compile again."""
    model = wired.to(torch.bfloat16)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled, graphs = torch.compile(model, fullgraph=True, backend=counter, dynamic=True), []
    for lengths in ((5, 9, 3), (7, 2, 8), (11, 6, 4)):
        wanted = _gradients(model, _loss(model, samples(lengths)))
        got = _gradients(model, _loss(compiled, samples(lengths)))
        graphs.append(counter.frame_count)
        for name, gradient in wanted.items():
            off = (got[name] - gradient).abs().max()
            assert off <= 4 * torch.finfo(torch.bfloat16).eps * gradient.abs().max(), name
    assert graphs[0] == graphs[-1] > 0, "new lengths must not compile again"
    torch._dynamo.reset()
