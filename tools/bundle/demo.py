"""``bundle demo``: the whole road on this machine: build, check, publish, fetch with `kernels`, train padding-free.

Every step is a verb or a program that a person could run alone; nothing is taken from the checkout by a short cut. The
guide itself runs in two processes (bundle.guide), one of which never sees the bundle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bundle import build, buildfile, check, options
from bundle.errors import DemoError, PublishError, UsageError
from bundle.guide import claims
from bundle.hub.server import RunningHub, running_hub
from bundle.process import console, say

CPU_VARIANTS = "*cpu*"
STEPS = 20
TAIL_LINES = 15
FOREIGN_SETTINGS = (
    *("LOCAL_KERNELS", "KERNELS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    *("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK"),
)
"""What would take the demo elsewhere; with the last three `kernels` 0.17.2 sends a header that no server accepts."""
THREE_LINES = """\
from kernels import get_kernel
padfree = get_kernel("{repository}", version={version}, trust_remote_code=True)
padfree.enable(model)  # with DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout to build"
    )
    options.add_out(parser)
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"training steps (default: {STEPS})")


def run(args: argparse.Namespace) -> int:
    """The demonstration; DemoError when a claim it makes does not hold."""
    started = time.monotonic()
    if args.steps < 2:
        raise UsageError(f"--steps must be at least 2 (the loss must fall), got {args.steps}")
    built = buildfile.read(args.root)
    out, scratch = options.places(args)
    work = scratch / "demo"
    work.mkdir(parents=True, exist_ok=True)
    _title("1. build the CPU variant, and check it")
    _verb(build, args)
    _verb(check, args)
    with running_hub(work / "store") as hub:
        _title(f"2. publish it to a Hub on this machine, {hub.endpoint}")
        _publish(args, out, hub)
        _title("3. train on it as a user would: fetched by kernels.get_kernel into an empty cache")
        without, with_bundle = _guide(args.steps, work, built.repository, hub)
    _show(without, with_bundle)
    claims.judge(without, with_bundle)
    say(f"\nEvery claim held. The demo took {time.monotonic() - started:.0f} s. In your own code:\n", style="green")
    console.print(Text(THREE_LINES.format(repository=built.repository, version=built.version)))
    return 0


def _title(text: str) -> None:
    say(f"\n{text}", style="bold")


def _verb(module: Any, args: argparse.Namespace) -> None:
    """Run ``build`` or ``check`` as the command line would, on the demo's variant."""
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args(_words(args)))


def _words(args: argparse.Namespace) -> list[str]:
    out, scratch = options.places(args)
    return ["--root", str(args.root), "--out", str(out), "--scratch", str(scratch), "--only", CPU_VARIANTS]


def _publish(args: argparse.Namespace, out: Path, hub: RunningHub) -> None:
    """In a process of its own: a Hub client reads its endpoint once, when it is imported."""
    command = [sys.executable, "-m", "bundle", "publish", *_words(args), "--allow-dirty"]
    if subprocess.run(command, env=_environment(hub), check=False).returncode != 0:
        raise PublishError("publishing to the embedded Hub failed", hint="The lines above say why.")


def _environment(hub: RunningHub, **more: str) -> dict[str, str]:
    """This environment, pointed at the Hub on this machine and at nothing else."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN_SETTINGS}
    loopback = ",".join(filter(None, [kept.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    ours = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": hub.token,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
    }
    return {**kept, **ours, **more}


def _guide(steps: int, work: Path, repository: str, hub: RunningHub) -> tuple[dict[str, Any], dict[str, Any]]:
    cache = work / "hf"
    shutil.rmtree(cache, ignore_errors=True)
    environment = _environment(hub, HF_HOME=str(cache))
    del environment["HF_TOKEN"]  # a user who only downloads has none
    words = ["--work", str(work), "--repository", repository, "--steps", str(steps)]
    with _progress() as bar:
        without = _half("without", words, environment, work, bar)
        with_bundle = _half("with", words, environment, work, bar)
    return without, with_bundle


def _half(half: str, words: list[str], environment: dict[str, str], work: Path, bar: Progress) -> dict[str, Any]:
    """Run one process of the guide: its events move the bar, its last line is the result."""
    log = work / f"guide-{half}.log"
    task = bar.add_task("loading torch and transformers", total=None)
    result: dict[str, Any] | None = None
    with log.open("w", encoding="utf-8") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "bundle.guide", half, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
        )
        try:
            for line in child.stdout or ():
                event = _event(line)
                result = event.get("result", result)
                if "what" in event:
                    bar.update(task, description=event["what"], completed=event["done"], total=event["of"])
            code = child.wait()
        finally:
            child.kill()
            child.wait()
    bar.remove_task(task)
    if code != 0 or result is None:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:])
        raise DemoError(f"the guide {half} the bundle ended with code {code}:\n{tail}", hint=f"The log is {log}.")
    return result


def _event(line: str) -> dict[str, Any]:
    """What a line of the guide says; anything a library prints on standard output is no event."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield bar


def _show(without: dict[str, Any], with_bundle: dict[str, Any]) -> None:
    """The table: how each way of batching differs from sample by sample, and how fast it is."""
    loaded, count = with_bundle["loaded"], with_bundle["targets"]
    say(f"fetched {loaded['id']} ({loaded['isa']} path) in {loaded['seconds']:.1f} s")
    texts = f"{with_bundle['samples']} texts of up to {with_bundle['longest']} bytes, {count} tokens"
    table = Table(
        title=f"One training step on {texts}.\n"
        "Differences are from the same texts one by one, computed without the bundle; up to "
        f"{claims.allowance(count):.1e} is rounding.",
        title_justify="left",
    )
    for heading in ("model", "batch", "kernels", "loss differs by", "worst gradient by", "tokens/s", "verdict"):
        table.add_column(heading, justify="right" if heading == "tokens/s" else "left")
    for name, ours in with_bundle["models"].items():
        theirs = without["models"][name]
        padded = theirs["padded_seconds"]
        _row(table, name, "packed", "this bundle", ours, count, padded)
        _row(table, "", "packed", "none", theirs["packed"]["boundaries"], count, padded)
        _row(table, "", "packed, position_ids only", "none", theirs["packed"]["position_ids"], count, padded)
        table.add_row("", "padded", "none", "", "", f"{count / padded:.0f}", "the yardstick", end_section=True)
    console.print(table)
    for name, ours in with_bundle["models"].items():
        losses = ours["losses"]
        fell = f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"
        say(f"{name}: {len(losses)} steps of transformers.Trainer on packed batches, {fell}")


def _row(
    table: Table, name: str, batch: str, kernels: str, measured: dict[str, Any], count: int, padded: float
) -> None:
    """One way of batching: its differences and speed, or how it failed."""
    if "error" in measured:
        table.add_row(name, batch, kernels, "", "", "", Text(measured["error"], style="red"))
        return
    apart = measured["difference"]
    equal = max(apart.values()) <= claims.allowance(count)
    verdict = (
        f"{'equal' if equal else 'WRONG: samples leak into each other'}, {padded / measured['seconds']:.2f}x padded"
    )
    table.add_row(
        name,
        batch,
        kernels,
        f"{apart['loss']:.1e}",
        f"{apart['gradient']:.1e}",
        f"{count / measured['seconds']:.0f}",
        Text(verdict, style="green" if equal else "red"),
    )
