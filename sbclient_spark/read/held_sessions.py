"""Lets an application use the sessions that a stream holds: their states, and what to do with a bad one.

The planner of a stream is a process of its own, which holds the locks of the sessions. `foreachBatch` runs in another
process of the same machine. It asks the planner through a Unix socket in a folder that only their user can open.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from sbclient import errors
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
)
from sbclient_spark.credentials import connection_string_of
from sbclient_spark.options import SPARK_OPTIONS, ConnectionOptions
from sbclient_spark.read.options import read_options
from sbclient_spark.read.sessions import StreamSessions

TIMEOUT_S: Final = 60.0
_numbers = count(1)


def _folder() -> Path:
    """Return the folder of the sockets.

    Raises:
        InvalidOperationError: another user has made it.
    """
    folder = Path(tempfile.gettempdir()) / f"sbclient-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise InvalidOperationError(f"{folder} can be used by other users: remove it, or set TMPDIR to another folder")
    return folder


def _namespace_of(options: ConnectionOptions) -> str:
    primary = connection_string_of(options.primary, "connectionString")
    return primary.namespace if primary is not None else options.primary.fully_qualified_namespace or ""


class SessionService:
    """Answers for the sessions of one stream.

    Args:
        sessions: of each path; the stream adds to it.
    """

    def __init__(self, options: ConnectionOptions, sessions: Mapping[str, StreamSessions]) -> None:
        self._namespace = _namespace_of(options)
        self._sessions = sessions
        self._path = _folder() / f"{os.getpid()}-{next(_numbers)}.sock"
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start to answer; does nothing the second time."""
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._answer, self._path)

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = json.loads(await reader.read())
            sessions = self._sessions.get(asked["queue"]) if asked["namespace"] == self._namespace else None
            answer: dict[str, Any] = {"is_held": sessions is not None and sessions.holds(asked["session"])}
            if sessions is not None and answer["is_held"]:
                answer["result"] = await _done(sessions, asked)
        except ServiceBusError as error:
            answer = {"is_held": True, "error": type(error).__name__, "reason": str(error)}
        writer.write(json.dumps(answer).encode())
        await writer.drain()
        writer.close()


async def _done(sessions: StreamSessions, asked: Mapping[str, Any]) -> Any:
    session, state = asked["session"], asked["state"]
    match asked["operation"]:
        case "get_state":
            found = await sessions.get_state(session)
            return None if found is None else b64encode(found).decode()
        case "set_state":
            return await sessions.set_state(session, None if state is None else b64decode(state))
        case _:
            return await sessions.dead_letter(session, asked["reason"], asked["description"])


class HeldSessions:
    """The sessions of a micro-batch whose stream has `mode` receive, for use in `foreachBatch`.

    Args:
        options: of the stream: its namespace and its queue or subscription.

    Raises:
        InvalidOperationError: an option is missing or invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        own = {name: str(value) for name, value in options.items() if name.lower() not in SPARK_OPTIONS}
        read = read_options(own, is_streaming=True)
        if len(read.paths) != 1:
            raise InvalidOperationError(f"{', '.join(read.paths)} are given: give the one that has the sessions")
        self._path = read.paths[0]
        self._namespace = _namespace_of(read.connection)

    def get_state(self, session_id: str) -> bytes | None:
        """Return the state of a session; None if there is none.

        Raises:
            SessionLockLostError: no stream on this machine holds the session; as for every method.
        """
        found = self._ask(session_id, "get_state")
        return None if found is None else b64decode(found)

    def set_state(self, session_id: str, state: str | bytes | None) -> None:
        """Store the state of a session at once; None or an empty one removes it.

        A micro-batch that is replayed finds the state that its first run has stored: keep the number of the micro-batch
        in the state to notice that.
        """
        data = state.encode() if isinstance(state, str) else state
        self._ask(session_id, "set_state", state=None if data is None else b64encode(data).decode())

    def dead_letter(self, session_id: str, reason: str = "", error_description: str = "") -> int:
        """Dead-letter the messages of a session that are in the micro-batch, at once; return their number.

        The other sessions of the micro-batch are not affected. Read the session before: a later read misses it.
        """
        found: int = self._ask(session_id, "dead_letter", reason=reason, description=error_description)
        return found

    def _ask(
        self, session: str, operation: str, *, state: str | None = None, reason: str = "", description: str = ""
    ) -> Any:
        asked = {"namespace": self._namespace, "queue": self._path, "session": session, "operation": operation}
        request = json.dumps(asked | {"state": state, "reason": reason, "description": description}).encode()
        for path in sorted(_folder().glob("*.sock")):
            if (replied := _reply(path, request, f"{operation} of session {session!r}")) is None:
                continue
            answer = json.loads(replied)
            if "error" in answer:
                kind: type[ServiceBusError] = getattr(errors, answer["error"], ServiceBusError)
                raise kind(answer["reason"])
            if answer["is_held"]:
                return answer["result"]
        raise SessionLockLostError(
            f"no stream on this machine holds the session {session!r} of {self._path!r}: call this in foreachBatch, "
            "for a session of the micro-batch of a stream with mode 'receive'"
        )


def _reply(path: Path, request: bytes, what: str) -> bytes | None:
    """Return what the planner with a socket answers; None if it was killed or has stopped.

    Raises:
        OperationTimeoutError: the planner does not answer in time.
        ServiceBusConnectionError: it ended while it was asked.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # A blocking socket waits while many threads ask at once; one with a timeout of Python's fails then.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(TIMEOUT_S), 0))
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return None
        except BlockingIOError as error:
            raise OperationTimeoutError(
                f"{what}: the planner of a stream has too many requests for {TIMEOUT_S:g} s: ask it from fewer threads"
            ) from error
        connection.settimeout(TIMEOUT_S)
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            replied = b"".join(iter(partial(connection.recv, 65_536), b""))
        except TimeoutError as error:
            raise OperationTimeoutError(f"{what}: the planner of a stream did not answer in {TIMEOUT_S:g} s") from error
        except ConnectionError as error:
            raise ServiceBusConnectionError(f"{what}: the planner of a stream has ended") from error
    if not replied:
        raise ServiceBusConnectionError(f"{what}: the planner of a stream has ended")
    return replied
