"""``python -m bundle.guide without|with --work DIR --repository ID --steps N``: one process of the guide."""

from __future__ import annotations

import argparse
from pathlib import Path

import transformers

from bundle.guide import corpus, events, measure

SAMPLES = 8
"""How many documents the compared and timed batch holds."""


def main() -> None:
    """Run one half of the guide; everything measured is the last line of standard output."""
    parser = argparse.ArgumentParser(prog="bundle.guide")
    parser.add_argument("half", choices=("without", "with"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    samples = corpus.drawn(SAMPLES)
    shared = {
        "samples": len(samples),
        "targets": corpus.targets(samples),
        "longest": max(map(len, samples)),
        "rounds": measure.ROUNDS,
    }
    if args.half == "without":
        from bundle.guide import without

        events.result({**shared, "models": without.run(args.work, samples)})
    else:
        from bundle.guide import with_bundle

        events.result({**shared, **with_bundle.run(args.work, samples, args.repository, args.steps)})


if __name__ == "__main__":
    main()
