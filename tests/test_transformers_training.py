"""The padding-free guide on a wired model: Trainer with its collator, gradient steps, and torch.compile."""

import pytest
import torch
import torch._dynamo.testing
from tiny_models import FAMILIES, HYBRIDS, build, pack, samples

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, BATCH, RATE = 3, 3, 0.1
ROWS = samples((5, 9, 3, 17, 2, 8, 6, 11, 4))


class _Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return {"input_ids": ROWS[index].tolist()}


class _Losses(transformers.TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.values.append(logs["loss"])


def _trained(model, folder):
    """Losses of Trainer's steps over packed batches, in order."""
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    losses = _Losses()
    transformers.Trainer(model, arguments, collator, _Rows(), callbacks=[losses]).train()
    return losses.values


def _by_hand(model):
    """The same steps, one sample at a time."""
    losses = []
    for step in range(STEPS):
        rows = ROWS[step * BATCH : (step + 1) * BATCH]
        count = sum(len(row) - 1 for row in rows)
        total = 0.0
        model.zero_grad()
        for row in rows:
            logits = model(input_ids=row[None], use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], row[1:], reduction="sum") / count
            loss.backward()
            total += loss.item()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
        losses.append(total)
    return losses


@pytest.mark.parametrize("family", [*FAMILIES, *HYBRIDS])
def test_trainer_takes_the_steps_of_single_samples(padfree, family, tmp_path):
    wanted = _by_hand(build(family, torch.float64).train())
    eager = _by_hand(build(family).train())
    model = build(family)
    padfree.enable(model)
    try:
        losses = _trained(model, tmp_path)
    finally:
        padfree.disable(model)
    assert len(losses) == STEPS
    for got, exact, other in zip(losses, wanted, eager, strict=True):
        assert abs(got - exact) <= 2 * abs(other - exact) + 64 * torch.finfo(torch.float32).eps * exact


def test_fullgraph_compile_trains_and_follows_lengths(padfree):
    """Attention, convolution and recurrence at once; bf16, since transformers breaks the graph of float32 weights."""
    model = build("qwen3_next", torch.bfloat16).train()
    padfree.enable(model)
    torch._dynamo.reset()
    try:
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled, graphs = torch.compile(model, fullgraph=True, backend=counter, dynamic=True), []
        for lengths in ((5, 9, 3), (7, 2, 8), (11, 6, 4)):
            batch = pack(samples(lengths))
            wanted, gradient = _step(model, model, batch)
            got, compiled_gradient = _step(compiled, model, batch)
            graphs.append(counter.frame_count)
            epsilon = torch.finfo(torch.bfloat16).eps
            assert (got - wanted).abs().max() <= epsilon * wanted.abs().max()
            assert (compiled_gradient - gradient).abs().max() <= 2 * epsilon * gradient.abs().max()
        assert graphs[0] == graphs[-1] > 0, "a new length must not compile again"
    finally:
        padfree.disable(model)
        torch._dynamo.reset()


def _step(call, model, batch):
    """Logits, and the gradient of the output layer."""
    model.zero_grad()
    logits = call(**batch).logits
    logits.float().square().sum().backward()
    return logits.detach().float(), model.lm_head.weight.grad.float()
