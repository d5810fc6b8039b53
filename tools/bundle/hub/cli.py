"""``python -m bundle serve``: the Hub alone, for trying publications and for machines without a network."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from bundle.errors import UsageError

from .server import TOKEN_FILE, TRUSTED_ORGS, RunningHub, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", type=Path, required=True, metavar="DIR", help="where repositories are kept; made if absent"
    )
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default 0: a free one)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"file with the write token (default DIR/{TOKEN_FILE})"
    )
    parser.add_argument(
        "--trust",
        action="append",
        metavar="ORG",
        help=f"organisations that count as trusted (default {', '.join(TRUSTED_ORGS)})",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; prints what a client has to set."""
    token_file: Path = args.token_file or args.store / TOKEN_FILE
    serve(
        args.store,
        host=args.host,
        port=args.port,
        token=_read_token(token_file) if args.token_file else None,
        trusted_orgs=tuple(args.trust or TRUSTED_ORGS),
        announce=lambda hub: print(_announcement(hub, token_file), flush=True),
    )
    return 0


def _announcement(hub: RunningHub, token_file: Path) -> str:
    """Lines to paste into a shell; the token itself stays in its file."""
    values = {name: shlex.quote(value) for name, value in hub.environment().items()}
    values["HF_TOKEN"] = f"$(cat {shlex.quote(str(token_file.resolve()))})"
    lines = [f"# serving {hub.store}; stop with Ctrl-C", *(f"export {name}={value}" for name, value in values.items())]
    return "\n".join(lines)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file must be a readable text file, got {path}: {error}") from error
    if len(token) < 16:
        raise UsageError(f"--token-file must hold a token of at least 16 characters, got {len(token)}")
    return token
