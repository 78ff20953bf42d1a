"""The self-signed certificate of the emulator, created once for each set of names and stored in a file.

The private key of its authority is discarded, so that clients which trust the file trust no other certificate. Creating
a certificate, and importing the libraries for it, takes time; the start of the emulator does not wait for either.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from shutil import rmtree
from typing import Final
from zlib import crc32

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1", "host.docker.internal")

_AUTHORITY: Final = "authority.pem"
_SERVER: Final = "server.pem"


def default_directory() -> Path:
    """Return the directory for certificates: the user's cache, or a temporary directory if there is none."""
    cache = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):
        return (Path(cache) if cache else Path.home() / ".cache") / "sbclient"
    return Path(tempfile.gettempdir()) / "sbclient"


def is_this_machine(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address. Names are not resolved: another machine may answer."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host.lower() == "localhost"


def local_trust(host: str) -> ssl.SSLContext:
    """Return a TLS context for an emulator on this machine.

    It trusts the certificates that emulators of this user have stored, whatever their names are, and the default
    authorities. The certificate of an emulator that serves `host` is created if it does not exist.

    Args:
        host: for which `is_this_machine` holds.

    Raises:
        OSError: a certificate cannot be written, or another user may know or change its key.
        ModuleNotFoundError: trustme is not installed.
    """
    directory = default_directory()
    Certificate(directory, (*LOCAL_NAMES, host)).make()
    context = ssl.create_default_context()
    for stored in directory.glob("certificate-*"):
        with suppress(OSError):  # of another user, or not complete
            if _has_safe_certificate(stored):
                context.load_verify_locations(stored / _AUTHORITY)
    return context


class Certificate:
    """A certificate for some names.

    Args:
        directory: where the certificate is stored.
        names: DNS names and addresses that clients use.
    """

    def __init__(self, directory: Path, names: Sequence[str] = LOCAL_NAMES) -> None:
        self._names = sorted(set(names))
        self._directory = directory / f"certificate-{crc32(' '.join(self._names).encode()):08x}"
        self._making: asyncio.Task[ssl.SSLContext] | None = None

    @property
    def path(self) -> Path:
        """The file that clients must trust. It exists after `make`."""
        return self._directory / _AUTHORITY

    def make(self) -> None:
        """Create the certificate unless it exists. Blocks for some tenths of a second.

        Raises:
            OSError: it cannot be written.
            ModuleNotFoundError: trustme is not installed.
        """
        if _has_safe_certificate(self._directory):
            return
        made = self._new_directory()
        try:
            self._write(made)
            # Another process may have created it first; then that certificate is used.
            with suppress(OSError):
                made.rename(self._directory)
        finally:
            rmtree(made, ignore_errors=True)

    async def server_context(self) -> ssl.SSLContext:
        """Return the TLS context for a server, creating the certificate on the first call.

        Raises:
            OSError: it cannot be written.
            ModuleNotFoundError: trustme is not installed.
        """
        if self._making is None or (self._making.done() and self._making.exception() is not None):
            self._making = asyncio.create_task(asyncio.to_thread(self._made), name="certificate")
        # Cancelling one caller must not cancel the work for the others.
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        """Wait until the certificate is not being created. Safe to call twice."""
        if self._making is not None:
            await asyncio.wait([self._making])

    def _new_directory(self) -> Path:
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="new-", dir=self._directory.parent))

    def _made(self) -> ssl.SSLContext:
        self.make()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(self._directory / _SERVER)
        return context

    def _write(self, directory: Path) -> None:
        try:
            import trustme
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"a certificate requires the package {error.name}: install the extra `emulator`, in a checkout of this "
                "package with python -m pip install '.[emulator]'"
            ) from error
        authority = trustme.CA(organization_name="sbclient emulator")
        server = authority.issue_cert(*self._names)
        authority.cert_pem.write_to_path(directory / _AUTHORITY)
        chain = directory / _SERVER
        chain.touch(mode=0o600)
        server.private_key_and_cert_chain_pem.write_to_path(chain)


def _has_safe_certificate(directory: Path) -> bool:
    """Whether there is a certificate in a directory.

    Raises:
        OSError: another user may know or change its key.
    """
    if not (directory / _SERVER).exists():
        return False
    for path in (directory, directory / _SERVER, directory / _AUTHORITY):
        check_owner(path)
    return True


def check_owner(path: Path) -> None:
    """Check that only this user can change a file or directory. Windows has other permissions.

    Raises:
        PermissionError: another user can.
    """
    if hasattr(os, "getuid"):
        if path.lstat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        if path.stat().st_mode & 0o022:
            raise PermissionError(errno.EPERM, "other users may write to it", str(path))
