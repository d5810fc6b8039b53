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
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bundle import build, buildfile, check, options, progress
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
    claims.judge(with_bundle)
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
    environment.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads sleep: spinning would slow a busy machine
    del environment["HF_TOKEN"]  # a user who only downloads has none
    words = ["--work", str(work), "--repository", repository, "--steps", str(steps)]
    with progress.shown() as show:
        without = _half("without", words, environment, work, show)
        with_bundle = _half("with", words, environment, work, show)
    return without, with_bundle


def _half(half: str, words: list[str], environment: dict[str, str], work: Path, show: progress.Show) -> dict[str, Any]:
    """Run one process of the guide: its events say how far it is, its last line is the result."""
    log = work / f"guide-{half}.log"
    show(f"{half} the bundle: loading torch and transformers", 0, None)
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
                    show(event["what"], event["done"], event["of"])
            code = child.wait()
        finally:
            child.kill()
            child.wait()
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


def _show(without: dict[str, Any], with_bundle: dict[str, Any]) -> None:
    """The table: how each way of batching differs from sample by sample, and how fast it is; then the training."""
    loaded, count = with_bundle["loaded"], with_bundle["targets"]
    say(f"fetched {loaded['id']} ({loaded['isa']} path) in {loaded['seconds']:.1f} s")
    say(
        f"\nOne step on {with_bundle['samples']} texts of up to {with_bundle['longest']} bytes, {count} tokens.\n"
        "Off: by how much loss and the worst gradient differ from the same texts one by one, computed without the\n"
        f"bundle; up to {claims.allowance(count):.1e} is rounding. Speed: the best of {with_bundle['rounds']} rounds."
    )
    table = Table()
    for heading in ("model", "batch", "kernels", "loss off", "gradient off", "tokens/s", "vs padded"):
        table.add_column(heading, justify="right" if heading in ("tokens/s", "vs padded") else "left")
    notes: list[str] = []
    for name, ours in with_bundle["models"].items():
        theirs, seconds = without["models"][name], ours["seconds"]
        table.add_row(name, "packed", "bundle", *_off(ours, count, notes), *_speed(seconds, claims.BUNDLE, count))
        table.add_row(
            "", "packed", "none", *_off(theirs["boundaries"], count, notes), *_speed(seconds, claims.PACKED, count)
        )
        table.add_row("", "packed *", "none", *_off(theirs["position_ids"], count, notes))
        table.add_row("", "padded", "none", "", "", *_speed(seconds, claims.PADDED, count), end_section=True)
    console.print(table)
    say("* with position_ids only, the collator's default")
    for number, note in enumerate(notes, 1):
        say(f"({number}) {note}")
    slow = [name for name, ours in with_bundle["models"].items() if claims.faster(ours["seconds"], claims.BUNDLE) < 1]
    if slow:
        say(f"{' and '.join(slow)}: slower than padded here; is other work running on this machine?", style="yellow")
    for name, ours in with_bundle["models"].items():
        losses = ours["losses"]
        fell = f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"
        say(f"{name}: {len(losses)} steps of transformers.Trainer on packed batches, {fell}")


def _off(measured: dict[str, Any], count: int, notes: list[str]) -> tuple[Text, Text]:
    """Two cells: how far loss and gradients are off, or the number of the note that holds the error."""
    if "error" in measured:
        if measured["error"] not in notes:
            notes.append(measured["error"])
        return Text(f"error ({notes.index(measured['error']) + 1})", style="red"), Text("")
    apart = measured["difference"]
    leaks = max(apart.values()) > claims.allowance(count)
    style, word = ("red", " LEAK") if leaks else ("green", "")
    return Text(f"{apart['loss']:.1e}", style=style), Text(f"{apart['gradient']:.1e}{word}", style=style)


def _speed(seconds: dict[str, list[float]], way: str, count: int) -> tuple[str, str]:
    """Two cells: tokens a second, and how many times faster than padded; empty where it was not timed."""
    if way not in seconds:
        return "", ""
    return f"{count / min(seconds[way]):.0f}", f"{claims.faster(seconds, way):.2f}x"
