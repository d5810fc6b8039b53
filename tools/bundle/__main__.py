"""``python -m bundle <verb>``: hands the command line to the verb's module and words its failure."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.text import Text

from bundle.errors import BundleError
from bundle.process import console

VERBS = {
    "plan": ("bundle.plan", "which variants there are, and why some are left out"),
    "build": ("bundle.build", "compile variants into build/"),
    "check": ("bundle.check", "prove that built variants keep the rules"),
    "publish": ("bundle.publish", "upload checked variants to a Hub"),
    "serve": ("bundle.hub.cli", "run the embedded Hub"),
    "resources": ("bundle.resources", "registers, shared memory and spills of each CUDA kernel"),
    "toolchain": ("bundle.toolchain", "fetch a CUDA toolkit from the package registry"),
    "tables": ("bundle.tables", "check, or write, the tables of the documents that rest on tests"),
    "lint": ("bundle.lint", "ruff, clang-format, mypy, and the tables of the documents"),
    "test": ("bundle.testing", "lint, the driver's tests, the bundle's tests on each CPU path, the whole road"),
    "torch": ("bundle.other_torch", "the bundle's tests with another torch than the one it was built with"),
    "soak": ("bundle.soak", "random right and wrong calls at a build with address and undefined-behaviour checks"),
    "gpu": ("bundle.gpu.check", "on a machine with a GPU: build for it, test on it, time beside torch's own kernels"),
    "bench": ("bundle.bench", "time the bundle against what a user could write instead"),
    "demo": ("bundle.demo", "the whole road: build, check, publish, load, train"),
}
"""A verb's module is imported only when it is asked for: `plan` needs neither a web server nor torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code is 0, or the one of the kind of failure (errors.py)."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="bundle", description="Builds, checks and publishes padfree-flash2.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    modules: dict[str, ModuleType] = {}
    for name, (path, summary) in VERBS.items():
        subparser = verbs.add_parser(name, help=summary, description=summary)
        if name == verb:
            modules[name] = importlib.import_module(path)
            modules[name].add_arguments(subparser)
    args = parser.parse_args(words)
    try:
        return int(modules[args.verb].run(args))
    except BundleError as error:
        explain(args.verb, error)
        return error.exit_code
    except KeyboardInterrupt:
        console.print(f"bundle {args.verb}: interrupted")
        return 130


def explain(verb: str, error: BundleError) -> None:
    """The failure in red, the next step below it."""
    console.print(Text.assemble((f"bundle {verb}: ", "bold red"), error.message))
    if error.hint:
        console.print(Text.assemble(("next: ", "bold"), error.hint))


if __name__ == "__main__":
    sys.exit(main())
