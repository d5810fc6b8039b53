"""Every way the driver can fail: one class a kind, one exit code a class.

A script that calls ``python -m bundle`` can tell a missing compiler from a failed check by the exit code alone; a
person reads the message (what was wanted, what came) and the hint (the next step).
"""

from __future__ import annotations


class BundleError(Exception):
    """A failure the driver explains. ``hint`` is the next step to take, one sentence."""

    exit_code = 1
    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BundleError):
    """Words on the command line that do not go together (argparse uses the same code)."""

    exit_code = 2
    kind = "usage"


class ConfigError(BundleError):
    """build.toml or matrix.toml is wrong, or a file they list is missing."""

    exit_code = 3
    kind = "configuration"


class EmptySelectionError(BundleError):
    """``--only`` selects nothing that can be built."""

    exit_code = 4
    kind = "empty selection"


class ToolchainError(BundleError):
    """A compiler or a tool is missing, or has the wrong version."""

    exit_code = 5
    kind = "toolchain"


class BuildError(BundleError):
    """A compiler or linker ran and failed, or the disk is full."""

    exit_code = 6
    kind = "build"


class CheckError(BundleError):
    """A built variant breaks a rule."""

    exit_code = 7
    kind = "check"


class PublishError(BundleError):
    """The publication was refused before or during the upload."""

    exit_code = 8
    kind = "publish"


class HubError(BundleError):
    """The embedded Hub cannot start, or its store is damaged."""

    exit_code = 9
    kind = "hub"


class DemoError(BundleError):
    """The demonstration ran and a claim it makes did not hold."""

    exit_code = 10
    kind = "demo"


class SuiteError(BundleError):
    """A linter found something, or a test failed."""

    exit_code = 11
    kind = "tests"
