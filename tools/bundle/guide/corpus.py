"""Documents of uneven length from the text in tools/data, one token a byte, and the ways to batch them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import DataCollatorWithFlattening

DATA = Path(__file__).resolve().parents[2] / "data"
VOCABULARY = 256
SHORTEST = 16
"""Headings, such as "Section 1", are shorter and teach nothing."""
IGNORED = -100
"""The label that takes no part in the loss."""

Sample = list[int]


def documents() -> list[Sample]:
    """Every paragraph of the shipped texts, as bytes."""
    texts = [path.read_text(encoding="ascii") for path in sorted(DATA.glob("*.txt"))]
    paragraphs = [paragraph.strip() for text in texts for paragraph in text.split("\n\n")]
    return [list(paragraph.encode()) for paragraph in paragraphs if len(paragraph) >= SHORTEST]


def drawn(count: int, seed: int = 0) -> list[Sample]:
    """``count`` documents, the same ones for the same seed."""
    return random.Random(seed).sample(documents(), count)


def features(samples: list[Sample]) -> list[dict[str, Sample]]:
    """What a data set hands to a collator."""
    return [{"input_ids": sample} for sample in samples]


def collator(*, boundaries: bool = True) -> DataCollatorWithFlattening:
    """The collator of the padding-free guide; without ``boundaries`` its default form: position_ids only."""
    return DataCollatorWithFlattening(return_flash_attn_kwargs=boundaries, return_seq_idx=boundaries)


def packed(samples: list[Sample], *, boundaries: bool = True) -> dict[str, Any]:
    """All samples in one row, end to end."""
    return dict(collator(boundaries=boundaries)(features(samples)))


def padded(samples: list[Sample]) -> dict[str, Any]:
    """One row a sample, filled up to the longest."""
    width = max(map(len, samples))
    rows = [sample + [0] * (width - len(sample)) for sample in samples]
    labels = [sample + [IGNORED] * (width - len(sample)) for sample in samples]
    mask = [[1] * len(sample) + [0] * (width - len(sample)) for sample in samples]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(labels), "attention_mask": torch.tensor(mask)}


def targets(samples: list[Sample]) -> int:
    """How many tokens are predicted: all but the first of each sample."""
    return sum(len(sample) - 1 for sample in samples)
