"""What the tables of speeds show: for each document its rows, each a name and the glob of its cases (bench.cases)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Rows = tuple[tuple[str, str], ...]

DTYPES = ("fp32", "bf16", "fp16")


def _by_dtype(work: str, cases: str, dtypes: Sequence[str] = DTYPES) -> Iterator[tuple[str, str]]:
    """A row for each dtype, which stands for the braces in ``cases``."""
    for dtype in dtypes:
        yield f"{work}, {dtype}", cases.format(dtype)


def _options(passes: str) -> Iterator[tuple[str, str]]:
    """A row for each option of causal attention that has a case."""
    for option in ("alibi", "softcap", "sink", "bool mask", "float mask"):
        cases = f"attention/{passes} causal, {option}, fp32 *"
        yield f"causal {passes.replace('+', ' + ')}, {option}, fp32", cases


README: Rows = (
    ("attention, causal, forward + backward, bf16, 4 shapes", "attention/forward+backward causal bf16 *"),
    ("attention, 8 packed documents, forward + backward, bf16", "attention/forward+backward packed bf16"),
    (
        "attention, a 4-D causal mask, forward + backward, fp32",
        "attention/forward+backward causal, float mask, fp32 *",
    ),
    ("attention, decode, 16384 keys in pages, bf16", "attention/decode bf16 heads 32 of 8, pages of 256"),
    ("causal convolution, forward + backward, bf16", "causal_conv1d/forward+backward channel-last bf16"),
    ("causal convolution, decode, 24 layers, fp32", "causal_conv1d/update 24 layers fp32"),
    ("gated delta rule, forward, fp32", "gated_delta_rule/gdr fwd fp32"),
    ("gated delta rule, forward + backward, fp32", "gated_delta_rule/gdr fwd+bwd fp32"),
    ("gated delta rule, decode, 24 layers, fp32", "gated_delta_rule/gdr step 24 layers fp32"),
    ("Mamba 1 scan, forward, fp32", "selective_scan/scan fwd fp32"),
    ("Mamba 1 scan, forward + backward, fp32", "selective_scan/scan fwd+bwd fp32"),
    ("Mamba 2 SSD, forward + backward, fp32", "state_space/ssd fwd+bwd fp32"),
    ("Mamba 2, decode, 24 layers, fp32", "selective_scan/update 24 layers fp32, Mamba 2"),
    ("training step, Qwen3-Next-shaped, texts of uneven lengths", "training/Qwen3-Next, uneven"),
    ("training step, Bamba-shaped, texts of uneven lengths", "training/Bamba, uneven"),
)

ATTENTION: Rows = (
    *_by_dtype("causal forward, 4 shapes", "attention/forward causal {} *"),
    *_by_dtype("full forward, 4 shapes", "attention/forward full {} *"),
    *_by_dtype("causal forward + backward, 4 shapes", "attention/forward+backward causal {} *"),
    *_by_dtype("8 packed documents, forward", "attention/forward packed {}"),
    *_by_dtype("8 packed documents, forward + backward", "attention/forward+backward packed {}"),
    *_by_dtype("8 packed documents, forward", "attention/forward packed-mask {}", ("fp32", "bf16")),
    *_by_dtype("window of 512 in 4096", "attention/forward window {} 512 of 4096", ("fp32", "bf16")),
    *_options("forward"),
    *_options("forward+backward"),
    *_by_dtype("decode, 16384 keys, heads 8 of 8", "attention/decode {} heads 8 of 8"),
    ("decode, heads 32 of 8, bf16", "attention/decode bf16 heads 32 of 8"),
    ("decode, heads 32 of 8, pages of 256, bf16", "attention/decode bf16 heads 32 of 8, pages of 256"),
)

CAUSAL_CONV1D: Rows = (
    *_by_dtype("forward", "causal_conv1d/forward channel-last {}"),
    *_by_dtype("forward, `out=`", "causal_conv1d/forward channel-last given {}"),
    *_by_dtype("the same beside a copy", "causal_conv1d/share of copying {}"),
    *_by_dtype("forward, 8 documents", "causal_conv1d/forward 8 documents {}"),
    *_by_dtype("forward + backward", "causal_conv1d/forward+backward channel-last {}"),
    *_by_dtype("one token, 24 layers", "causal_conv1d/update 24 layers {}"),
    *_by_dtype("one token, a call by itself", "causal_conv1d/update {}"),
)

GATED_DELTA_RULE: Rows = (
    *_by_dtype("chunked forward", "gated_delta_rule/gdr fwd {}", ("fp32", "bf16")),
    ("chunked forward, 16 key heads, fp32", "gated_delta_rule/gdr fwd fp32, 16 key heads"),
    *_by_dtype("forward + backward", "gated_delta_rule/gdr fwd+bwd {}", ("fp32", "bf16")),
    ("forward + backward, 16 key heads, fp32", "gated_delta_rule/gdr fwd+bwd fp32, 16 key heads"),
    ("one step, 24 layers, fp32", "gated_delta_rule/gdr step 24 layers fp32"),
    *_by_dtype("one step, a call by itself", "gated_delta_rule/gdr step {}", ("fp32", "bf16")),
    ("one step of the public function, fp32", "gated_delta_rule/gdr step fp32, public function"),
    ("the same in place, fp32", "gated_delta_rule/gdr step fp32, public function in place"),
    ("a gate per channel, L 256: chunked forward, fp32", "gated_delta_rule/kda fwd fp32"),
    ("a gate per channel, L 256: forward + backward, fp32", "gated_delta_rule/kda fwd+bwd fp32"),
    ("a gate per channel: one step, 24 layers, fp32", "gated_delta_rule/kda step 24 layers fp32"),
    ("a gate per channel: one step, a call by itself, fp32", "gated_delta_rule/kda step fp32"),
)

SELECTIVE_SCAN: Rows = (
    *_by_dtype("forward, L 2048", "selective_scan/scan fwd {}", ("fp32", "bf16")),
    ("forward + backward, L 512, fp32", "selective_scan/scan fwd+bwd fp32"),
)

SELECTIVE_STATE_UPDATE: Rows = (
    ("Mamba 2, 24 layers, fp32", "selective_scan/update 24 layers fp32, Mamba 2"),
    *_by_dtype("Mamba 2, a call by itself", "selective_scan/update {}, Mamba 2", ("fp32", "bf16")),
    ("Mamba 1, 24 layers, fp32", "selective_scan/update 24 layers fp32, Mamba 1"),
    ("Mamba 1, a call by itself, fp32", "selective_scan/update fp32, Mamba 1"),
)

STATE_SPACE: Rows = (
    *_by_dtype("forward, L 2048", "state_space/ssd fwd {}", ("fp32", "bf16")),
    *_by_dtype("forward + backward, L 2048", "state_space/ssd fwd+bwd {}", ("fp32", "bf16")),
)

KERNELS: dict[str, Rows] = {
    "kernel-src/attention/README.md": ATTENTION,
    "kernel-src/causal_conv1d/README.md": CAUSAL_CONV1D,
    "kernel-src/gated_delta_rule/README.md": GATED_DELTA_RULE,
    "kernel-src/selective_scan/README.md": SELECTIVE_SCAN,
    "kernel-src/selective_state_update/README.md": SELECTIVE_STATE_UPDATE,
    "kernel-src/state_space/README.md": STATE_SPACE,
}
"""The `Measured` tables."""
