"""Runs the Hub on a loopback port: blocking for the command line, in a thread for the demo and the tests."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from bundle.errors import HubError

from . import files
from .app import INLINE_LIMIT, create_app
from .guard import is_loopback
from .store import Store

TOKEN_FILE = "token"
TRUSTED_ORGS = ("padfree",)
START_SECONDS = 20.0
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class RunningHub:
    """Where a started Hub listens and what lets a client write to it."""

    endpoint: str
    token: str
    store: Path

    def environment(self) -> dict[str, str]:
        """What a client process has to see. Where a proxy is set, it must not be asked for this machine."""
        wanted = {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": self.token}
        if any(os.environ.get(name) for name in _PROXIES):
            host = str(urlsplit(self.endpoint).hostname)
            past = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "", host]
            wanted |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, past)))
        return wanted


def serve(
    store: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    trusted_orgs: tuple[str, ...] = TRUSTED_ORGS,
    announce: Callable[[RunningHub], None] = lambda hub: None,
    inline_limit: int = INLINE_LIMIT,
) -> None:
    """Serves ``store`` until SIGINT or SIGTERM. ``announce`` is called once the port is bound.

    Without ``token`` the one kept in ``<store>/token`` is used, made on first use. Raises HubError when the host is not
    loopback, the port is busy, or the store cannot be opened.
    """
    with _bound(host, port) as listener, _opened(store) as opened:
        hub = RunningHub(_endpoint(listener), token or _kept_token(store), store)
        announce(hub)
        _server(opened, hub.token, trusted_orgs, inline_limit).run(sockets=[listener])


@contextmanager
def running_hub(
    store: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    trusted_orgs: tuple[str, ...] = TRUSTED_ORGS,
    inline_limit: int = INLINE_LIMIT,
) -> Iterator[RunningHub]:
    """Serves ``store`` from a thread as long as the context lasts; raises like ``serve``."""
    with _bound(host, port) as listener, _opened(store) as opened:
        hub = RunningHub(_endpoint(listener), token or _kept_token(store), store)
        server = _server(opened, hub.token, trusted_orgs, inline_limit)
        started = threading.Event()
        thread = threading.Thread(target=_run, args=(server, listener, started), name="hub", daemon=True)
        thread.start()
        if not started.wait(START_SECONDS) or not server.started:
            raise HubError(f"the Hub on {hub.endpoint} did not start", hint="Its log above says why.")
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join()


def _run(server: _Server, listener: socket.socket, started: threading.Event) -> None:
    server.ready = started
    try:
        server.run(sockets=[listener])
    finally:
        started.set()


class _Server(uvicorn.Server):
    """Tells when the port answers."""

    ready: threading.Event | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready is not None:
            self.ready.set()


def _server(store: Store, token: str, trusted_orgs: tuple[str, ...], inline_limit: int) -> _Server:
    config = uvicorn.Config(
        create_app(store, token, trusted_orgs, inline_limit),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
    )
    return _Server(config)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket listening on a loopback address; port 0 takes a free one."""
    if not is_loopback(host):
        raise HubError(
            f"hub: host must be a loopback address, got {host}",
            hint="The Hub has no TLS and no accounts: leave --host at 127.0.0.1.",
        )
    address = "127.0.0.1" if host.lower() == "localhost" else host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            raise _cannot_bind(address, port, error) from error
        yield listener


def _cannot_bind(address: str, port: int, error: OSError | OverflowError) -> HubError:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return HubError(
            f"hub: port {port} on {address} is busy", hint="Choose another with --port, or 0 for a free one."
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return HubError(f"hub: cannot listen on {address} port {port}: {reason}", hint="Choose another with --port.")


@contextmanager
def _opened(root: Path) -> Iterator[Store]:
    store = Store(root)
    try:
        yield store
    finally:
        store.close()


def _endpoint(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _kept_token(root: Path) -> str:
    """The token in ``<store>/token``, readable by its owner only, the same for every run over this store."""
    try:
        token = files.content(root, TOKEN_FILE).decode("ascii", "replace").strip()
    except FileNotFoundError:
        token = f"hf_{secrets.token_urlsafe(24)}"
        files.replace(root, f"{token}\n".encode(), TOKEN_FILE, mode=0o600)
    if len(token) < 16:
        raise HubError(
            f"{root / TOKEN_FILE} must hold a token of at least 16 characters", hint="Delete it; a new one is made."
        )
    return token
