"""A credential in a file, so that a key can be replaced without a restart; and rejections of a credential.

The file is read for each token: when a link to an entity is opened, before a token expires, after a rejection, and when
the application asks for it. A token is valid for an hour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.rules.connection_string import ConnectionString
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

MAX_BYTES: Final = 16_384


class Rejections:
    """Logs and counts that a namespace rejects the credential of its client.

    Args:
        namespace: its identity.
        credential: what it is and where it comes from, without a secret.
    """

    def __init__(self, namespace: str, credential: str) -> None:
        self._namespace = namespace
        self._credential = credential
        self._count = 0

    def rejected(self, error: ServiceBusError) -> None:
        """Count a rejection; the first one is logged."""
        self._count += 1
        metrics.add(metrics.CREDENTIAL_REJECTIONS, 1, metrics.server(self._namespace))
        if self._count == 1:
            log.warning(
                "credential.rejected",
                "{namespace} rejects the credential, {credential}: {reason}",
                namespace=self._namespace,
                credential=self._credential,
                error=error,
                reason=error.message,
            )

    def accepted(self) -> None:
        """End the rejections, if there were any."""
        if self._count:
            log.info(
                "credential.accepted",
                "{namespace} accepts the credential again, after {rejections} rejections",
                namespace=self._namespace,
                rejections=self._count,
            )
            self._count = 0


def described(connection: ConnectionString | None, credential: object) -> str:
    """Return what a credential is and where it comes from, without a secret."""
    if connection is None:
        return f"a {type(credential).__name__}"
    if connection.credential_file is not None:
        return f"the file {connection.credential_file!r}"
    return "a shared access signature" if connection.signature is not None else f"the key {connection.key_name!r}"


class CredentialFile:
    """The credential of a connection string that names a file.

    A file that cannot be read, as while it is replaced, is logged, and the credential that was read last counts.
    """

    def __init__(self, connection: ConnectionString) -> None:
        self._connection = connection
        self._latest: ConnectionString | None = None
        self._is_unreadable = False

    def read(self) -> ConnectionString:
        """Return the connection string with the credential that the file has now.

        Raises:
            InvalidOperationError: the file has never been readable.
        """
        path = Path(self._connection.credential_file or "")
        try:
            with path.open("rb") as file:
                found = self._connection.with_credential(file.read(MAX_BYTES).decode("utf-8-sig"))
        except (OSError, UnicodeDecodeError, InvalidOperationError) as error:
            if self._latest is None:
                raise error if isinstance(error, InvalidOperationError) else _unreadable(path, error) from None
            if not self._is_unreadable:
                self._is_unreadable = True
                log.warning(
                    "credential.unreadable",
                    "cannot read the credential of {namespace} in {file!r}: {error}; the previous one is used",
                    namespace=self._connection.namespace,
                    file=str(path),
                    error=error,
                )
            return self._latest
        self._is_unreadable = False
        if self._latest not in (None, found):
            log.info(
                "credential.replaced",
                "the file {file!r} has a new credential of {namespace}, which is used from now on",
                namespace=self._connection.namespace,
                file=str(path),
            )
        self._latest = found
        return found


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> InvalidOperationError:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    return InvalidOperationError(f"the credential file {str(path)!r} cannot be read: {reason}")
