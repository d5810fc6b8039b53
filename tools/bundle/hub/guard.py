"""Who may ask: a loopback Host for everything, the token for what writes, a signed URL for an LFS upload's body."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Mapping

from .refusal import Refusal

UPLOAD_SECONDS = 3600


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def check_host(header: str) -> None:
    """421 unless the Host header is loopback: a web page must not reach the Hub through a name that resolves to it."""
    host, colon, port = header.rpartition(":")
    if not colon or header.endswith("]"):
        host, port = header, ""
    if not is_loopback(host) or (port and not port.isascii()) or (port and not port.isdigit()):
        raise Refusal(421, f"Host must be a loopback address, got {ascii(header)[:80]}")


class Guard:
    """The write token, and the signatures of upload URLs (good for one content, one hour, one run of the server)."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = secrets.token_bytes(32)

    def check_token(self, headers: Mapping[str, str]) -> None:
        """401 unless the request carries ``Authorization: Bearer <token>``."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            raise Refusal(401, "Invalid credentials in Authorization header")

    def sign(self, sha256: str, size: int) -> str:
        """The query of an upload URL."""
        expires = int(time.time()) + UPLOAD_SECONDS
        return f"size={size}&expires={expires}&signature={self._signature(sha256, size, expires)}"

    def check_signature(self, sha256: str, query: Mapping[str, str]) -> int:
        """The size a signed upload URL allows; 403 when the URL was not made here, was changed or is too old."""
        try:
            size, expires = int(query["size"]), int(query["expires"])
            given = query["signature"].encode()
        except (KeyError, ValueError):
            raise Refusal(403, "upload URL must carry size, expires and signature") from None
        if not hmac.compare_digest(given, self._signature(sha256, size, expires).encode()):
            raise Refusal(403, "upload URL must be one this server handed out; ask the LFS batch again")
        if expires < time.time():
            raise Refusal(403, "upload URL has expired; ask the LFS batch again")
        return size

    def _signature(self, sha256: str, size: int, expires: int) -> str:
        return hmac.new(self._key, f"{sha256} {size} {expires}".encode(), hashlib.sha256).hexdigest()
