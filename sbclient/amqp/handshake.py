"""The handshake before the first AMQP frame: protocol headers and, between them, SASL.

Source: AMQP 1.0 part 2 section 2.2, part 5 section 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from sbclient.amqp import sasl
from sbclient.amqp.errors import FRAMING_ERROR, NOT_ALLOWED, UNAUTHORIZED, WireError
from sbclient.amqp.frames import AMQP_HEADER, MIN_MAX_FRAME_SIZE, SASL_HEADER, TYPE_SASL, FrameReader, encode_frame
from sbclient.amqp.options import ConnectionOptions
from sbclient.amqp.performatives import SaslFrame, SaslInit, SaslMechanisms, SaslOutcome
from sbclient.amqp.sasl import PlainCredentials


class _Step(Enum):
    FIRST_HEADER = "the first header"
    SASL = "a SASL frame"
    ADMISSION = "the check of the credentials"
    SECOND_HEADER = "the second header"
    DONE = "nothing"


class Handshake:
    """One side of the handshake.

    Args:
        options: the SASL mechanisms of a server, and whether it requires SASL.
        reader: has the peer's bytes.
        write_bytes: sends bytes.
        is_server: whether this side accepted the connection.
        mechanism: the SASL mechanism of a client, None to begin without SASL.
        credentials: of a client, for PLAIN.

    Attributes:
        mechanism: the SASL mechanism in use, None without SASL.
        credentials: those that the client sent by PLAIN, or None.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        reader: FrameReader,
        write_bytes: Callable[[bytes], None],
        *,
        is_server: bool,
        mechanism: str | None = None,
        credentials: PlainCredentials | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.credentials = credentials
        self._options = options
        self._reader = reader
        self._write_bytes = write_bytes
        self._is_server = is_server
        self._step = _Step.FIRST_HEADER
        if not is_server:
            write_bytes(SASL_HEADER if mechanism else AMQP_HEADER)

    def __str__(self) -> str:
        return self._step.value

    @property
    def is_done(self) -> bool:
        """Whether AMQP frames may follow."""
        return self._step is _Step.DONE

    @property
    def is_undecided(self) -> bool:
        """Whether the handshake waits until the owner has checked `credentials`."""
        return self._step is _Step.ADMISSION

    def advance(self) -> bool:
        """Do one step; False if it needs more bytes, or the check of the credentials.

        Raises:
            WireError: the handshake has failed.
        """
        if self._step is _Step.FIRST_HEADER:
            return self._take_header(self._on_first_header)
        if self._step is _Step.SECOND_HEADER:
            return self._take_header(self._on_second_header)
        if self._step is not _Step.SASL:
            return False
        frame = self._reader.next_frame(TYPE_SASL)
        if frame is None:
            return False
        if self._is_server:
            self._serve(frame.performative)
        else:
            self._ask(frame.performative)
        return True

    def judge(self, *, is_admitted: bool) -> None:
        """Send the outcome of SASL.

        Raises:
            WireError: the client is rejected.
        """
        self._write(SaslOutcome(sasl.OUTCOME_OK, b"Welcome!") if is_admitted else SaslOutcome(sasl.OUTCOME_REFUSED))
        if not is_admitted:
            raise WireError(UNAUTHORIZED, f"authentication by {self.mechanism!r:.40} failed")
        self._step = _Step.SECOND_HEADER

    def _take_header(self, handler: Callable[[bytes], None]) -> bool:
        header = self._reader.next_header()
        if header is None:
            return False
        handler(header)
        return True

    def _on_first_header(self, header: bytes) -> None:
        if not self._is_server:
            if header != (SASL_HEADER if self.mechanism else AMQP_HEADER):
                raise WireError(FRAMING_ERROR, f"the server answered with {header!r}")
            self._step = _Step.SASL if self.mechanism else _Step.DONE
        elif header == SASL_HEADER and self._options.mechanisms:
            self._write_bytes(SASL_HEADER)
            self._write(SaslMechanisms(self._options.mechanisms))
            self._step = _Step.SASL
        elif header == AMQP_HEADER and not self._options.requires_sasl:
            self._write_bytes(AMQP_HEADER)
            self._step = _Step.DONE
        else:  # the answer to an unsupported header is a supported one
            self._write_bytes(SASL_HEADER if self._options.requires_sasl else AMQP_HEADER)
            raise WireError(FRAMING_ERROR, f"the peer began with {header!r}")

    def _on_second_header(self, header: bytes) -> None:
        if header != AMQP_HEADER:
            raise WireError(FRAMING_ERROR, f"after SASL the peer began with {header!r}")
        if self._is_server:
            self._write_bytes(AMQP_HEADER)
        self._step = _Step.DONE

    def _serve(self, frame: object) -> None:
        if not isinstance(frame, SaslInit):
            raise WireError(NOT_ALLOWED, f"{type(frame).__name__} received, sasl-init expected")
        self.mechanism = frame.mechanism
        verdict = sasl.judged(frame, self._options.mechanisms)
        if isinstance(verdict, PlainCredentials):
            self.credentials = verdict
            self._step = _Step.ADMISSION
        else:
            self.judge(is_admitted=verdict)

    def _ask(self, frame: object) -> None:
        mechanism = self.mechanism or ""
        if isinstance(frame, SaslMechanisms):
            if mechanism not in frame.mechanisms:
                raise WireError(UNAUTHORIZED, f"the server does not offer {mechanism}, but {frame.mechanisms!r:.80}")
            response = sasl.first_response(mechanism, self.credentials)
            self._write(SaslInit(mechanism, response, self._options.hostname))
        elif isinstance(frame, SaslOutcome):
            if frame.code != sasl.OUTCOME_OK:
                raise WireError(UNAUTHORIZED, f"the server rejects {mechanism} with code {frame.code}")
            self._write_bytes(AMQP_HEADER)
            self._step = _Step.SECOND_HEADER
        else:
            raise WireError(NOT_ALLOWED, f"{type(frame).__name__} received, sasl-mechanisms or sasl-outcome expected")

    def _write(self, frame: SaslFrame) -> None:
        self._write_bytes(encode_frame(0, frame, MIN_MAX_FRAME_SIZE, TYPE_SASL))
