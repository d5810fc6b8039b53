"""What it costs to read each batch at a model's entrance, beside a training step of a small model.

``enable`` registers hooks that remember a batch's boundaries and refuse one that a layer would mix. The ratio is the
time of a step over theirs: 100 is 1 % of a step, and larger models take longer steps while the hooks stay as they are.
"""

import torch
from kernels.benchmark import Benchmark

LENGTHS = (1024, 384, 256, 192, 128, 64)
VOCABULARY = 4096


def batch():
    """Packed samples with every keyword of the padding-free guide."""
    import transformers

    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    return dict(collator([{"input_ids": row} for row in rows]))


def small_model():
    """Two layers, a convolution and an attention, of a quarter of the width of the smallest Lfm2."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Lfm2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    return transformers.Lfm2ForCausalLM(config).train()


def hooks_of(model, given):
    """A function that runs what ``enable`` hung on the model, its base model and its mixers, as one forward does."""
    modules = list(model.modules())
    before = [
        (hook, (module, (), given) if key in module._forward_pre_hooks_with_kwargs else (module, ()))
        for module in modules
        for key, hook in module._forward_pre_hooks.items()
    ]
    after = [(hook, (module, (), None)) for module in reversed(modules) for hook in module._forward_hooks.values()]

    def run():
        for hook, arguments in before + after:
            hook(*arguments)
        return given["input_ids"]

    return run


def beside_a_step(drop=()):
    """``drop``: keywords left away, so that values of others must be read."""

    def build(kernel):
        model, packed = small_model(), batch()
        kernel.enable(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

        def step():
            optimizer.zero_grad()
            model(**packed, use_cache=False).loss.backward()
            optimizer.step()
            return packed["input_ids"]

        given = {name: value for name, value in packed.items() if name not in drop}
        return {
            "candidate": hooks_of(model, given),
            "baselines": {"a training step": step},
            "flops": 0,
            "bytes": 0,
        }

    return build


CASES = {
    "hooks, keywords settle it": beside_a_step(),
    "hooks, positions are read": beside_a_step(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")),
}

GOALS = [{"work": "boundary check within 1 % of a step", "cases": "hooks, *", "floor": 100, "goal": 400}]


class BoundariesBenchmark(Benchmark):
    """The hooks alone, for ``kernels benchmark``."""

    seed = 0

    def setup_hooks(self):
        self.run = CASES["hooks, keywords settle it"](self.kernel)["candidate"]

    def benchmark_hooks(self):
        self.run()
