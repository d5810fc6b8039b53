"""What becomes of a packed batch on a CPU, family by family, without this bundle and with it.

test_transformers_leaks.py runs a tiny model of each family and fails where it finds another word than stands here.
"""

from claims import Family

TESTS = ("test_transformers_leaks.py::test_without_the_bundle", "test_transformers_leaks.py::test_with_the_bundle")

FAMILIES = (
    Family(
        title="Llama, Qwen3, Mistral, Gemma 2",
        names=("llama", "qwen3", "mistral", "gemma2"),
        without=("right", "right", "right"),
        with_bundle=("right", "right", "right"),
        layers=("here", "", ""),
    ),
    Family(  # transformers makes its masks without position_ids
        title="gpt-oss",
        names=("gpt_oss",),
        without=("leaks", "leaks", "leaks"),
        with_bundle=("right", "right", "right"),
        layers=("here", "", ""),
    ),
    Family(
        title="Lfm2, Lfm2-MoE",
        names=("lfm2", "lfm2_moe"),
        without=("refused", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("here", "here", ""),
    ),
    Family(  # its attention takes no flash kernel; under transformers' own masks it keeps samples apart
        title="Inkling (text)",
        names=("inkling",),
        without=("leaks", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("torch", "here", ""),
    ),
    Family(
        title="Qwen3-Next, Qwen3.5, Qwen3.5-MoE, OLMo-hybrid",
        names=("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"),
        without=("refused", "refused", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("here", "here", "here"),
    ),
    Family(
        title="Kimi Linear, Bailing-hybrid",
        names=("kimi_linear", "bailing_hybrid"),
        without=("refused", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("here", "here", "here"),
    ),
    Family(
        title="Bamba, Falcon-H1, Granite hybrid, Zamba, Zamba2, Nemotron-H",
        names=("bamba", "falcon_h1", "granitemoehybrid", "zamba", "zamba2", "nemotron_h"),
        without=("refused", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("here", "here", "here"),
    ),
    Family(
        title="Mamba 2",
        names=("mamba2",),
        without=("leaks", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("", "here", "here"),
    ),
    Family(
        title="Jamba",
        names=("jamba",),
        without=("leaks", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("here", "here", "here"),
    ),
    Family(
        title="Mamba, Falcon Mamba",
        names=("mamba", "falcon_mamba"),
        without=("leaks", "leaks", "leaks"),
        with_bundle=("right", "right", "refused"),
        layers=("", "here", "here"),
    ),
)
