"""What a guide process tells its parent: one JSON object a line on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def progress(what: str, done: int = 0, of: int = 1) -> None:
    """``done`` of ``of`` steps of ``what`` are behind us."""
    print(json.dumps({"what": what, "done": done, "of": of}), flush=True)


def result(values: Mapping[str, Any]) -> None:
    """The last line: all that was measured."""
    print(json.dumps({"result": values}), flush=True)
