"""One training step of small hybrid models: packed on this bundle, against padded on transformers' own torch code.

Two layers each, with the heads, head dims and proportions of the real models and an eighth to a quarter of their width:
Qwen3-Next-shaped (gated delta rule, then full attention) and Bamba-shaped (Mamba 2, then full attention). A step is
forward, loss, backward and AdamW in its fused form, which is what Trainer takes by default. Tokens a second count real
tokens.

What decides is how much of a padded batch is filling: torch's own products with the weights are 80 to 85 % of our step
on one thread and cost the same for a token of either kind. This bundle's kernels are 5 to 9 %, which is all that faster
ones could save. Of batches of eight paragraphs of the texts in tools/data the middle half computes 1.9 to 3.0 tokens
for a real one; `LENGTHS` has 3, and 5 for one long sample among short ones.
"""

import importlib.util
import sys

import torch
from kernels.benchmark import Benchmark

LENGTHS = {  # of the samples of a step; both sum to 1024 tokens
    "uneven": (512, 192, 128, 96, 64, 32),
    "one long": (640, 96, 80, 64, 48, 40, 32, 24),
}
VOCABULARY, IGNORED = 4096, -100

SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "use_cache": False,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
MODELS = {  # modelling file, class of the model and of its configuration, what the configuration holds beside SHARED
    "Qwen3-Next": (
        "qwen3_next",
        "Qwen3Next",
        {
            "intermediate_size": 1408,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "num_experts": 0,
        },
    ),
    "Bamba": (
        "bamba",
        "Bamba",
        {
            "intermediate_size": 1792,
            "attn_layer_indices": [1],
            "mamba_n_heads": 16,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
        },
    ),
}


def filling(lengths):
    """How many tokens a padded batch computes for a real one."""
    return max(lengths) * len(lengths) / sum(lengths)


def apart(family):
    """A modelling file of transformers imported once more: ``enable`` replaces functions that all models of a family
    share, and the baseline has to go on computing with transformers' own."""
    name = f"transformers.models.{family}.modeling_{family}"
    spec = importlib.util.find_spec(name)
    copy = importlib.util.spec_from_file_location(f"{name}_apart", spec.origin)
    if copy.name not in sys.modules:
        sys.modules[copy.name] = importlib.util.module_from_spec(copy)
        copy.loader.exec_module(sys.modules[copy.name])
    return sys.modules[copy.name]


def pair(name):
    """Two models with the same weights: one to wire, and one whose functions stay transformers' own."""
    import transformers

    family, stem, arguments = MODELS[name]
    # Each has a configuration of its own: it holds the attention that ``enable`` chooses for a model.
    configs = [getattr(transformers, f"{stem}Config")(**SHARED, **arguments) for _ in range(2)]
    torch.manual_seed(0)
    ours = getattr(transformers, f"{stem}ForCausalLM")(configs[0]).train()
    theirs = getattr(apart(family), f"{stem}ForCausalLM")(configs[1]).train()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def batches(lengths):
    """The same samples packed, as the padding-free guide's collator makes them, and padded on the right."""
    import transformers

    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    packed = dict(collator([{"input_ids": row.tolist()} for row in rows]))

    def filled(value, tensors):
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    padded = {"input_ids": filled(0, rows), "labels": filled(IGNORED, rows)}
    return packed, {**padded, "attention_mask": filled(0, [torch.ones_like(row) for row in rows])}


def stepper(model, batch, learning_rate=1e-6):
    """A function that takes one training step and returns its loss; at a rate of 0 the loss stays what it is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    targets = (batch["labels"][:, 1:] != IGNORED).sum().item()

    def step():
        optimizer.zero_grad()
        loss = model(**batch, num_items_in_batch=targets).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def training(name, lengths):
    """Packed here against padded there."""

    def build(kernel):
        ours, theirs = pair(name)
        kernel.enable(ours)
        packed, padded = batches(lengths)
        weights = sum(p.numel() for p in ours.parameters()) - ours.get_input_embeddings().weight.numel()
        return {
            "candidate": stepper(ours, packed),
            "baselines": {"padded, torch": stepper(theirs, padded)},
            "flops": 6 * weights * sum(lengths),  # of the products with weights alone
            "bytes": 4
            * 10
            * weights,  # weights read twice and their gradients written; AdamW reads four and writes three
            "tokens": sum(lengths),
            "tolerance": 1e-5,
        }

    return build


CASES = {f"{name}, {batch}": training(name, lengths) for name in MODELS for batch, lengths in LENGTHS.items()}

GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {
        "work": f"training step, {name}-shaped, {filling(lengths):g} padded tokens for one",
        "cases": f"{name}, {batch}",
        "floor": 4,
        "goal": 8,
    }
    for name in MODELS
    for batch, lengths in LENGTHS.items()
]


class TrainingBenchmark(Benchmark):
    """``kernels benchmark``: a step of the Qwen3-Next-shaped model, packed."""

    seed = 0

    def setup(self):
        """The model, wired, and its padded twin; neither learns, so that any two steps have the same loss."""
        ours, theirs = pair("Qwen3-Next")
        self.kernel.enable(ours)
        packed, padded = batches(LENGTHS["uneven"])
        self.step, self.twin = stepper(ours, packed, 0.0), stepper(theirs, padded, 0.0)
        self.out = torch.zeros(())

    def benchmark_step(self):
        """One packed step."""
        self.out = self.step()

    def verify_step(self):
        """The loss of the padded twin."""
        return self.twin()
