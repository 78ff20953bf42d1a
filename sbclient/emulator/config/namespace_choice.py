"""Determines the namespaces of an emulator and their ports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sbclient.broker.profile import Profile
from sbclient.emulator.config.entities import NamespaceConfig
from sbclient.errors import InvalidOperationError

DEFAULT_NAMESPACE: Final = "sbemulatorns"
"""The name of the only namespace of Microsoft's emulator."""

MAX_PORT: Final = 65_535


def chosen_namespaces(
    namespaces: Sequence[str], path: str | Path | None, profile: Profile, *, first_port: int = 0
) -> list[NamespaceConfig]:
    """The namespaces to serve: those of the configuration, then those given by name.

    Args:
        namespaces: `"contoso"` or `"contoso:5672"`; for a namespace of the configuration, only the port is used.
        path: of the configuration; None = there is none.
        first_port: of the first namespace without a port; the others get the next unused ones. 0 = any free ports.

    Raises:
        InvalidOperationError: a name or port is not valid or not unique; the configuration is not UTF-8.
        ConfigError: the configuration is not valid.
        OSError: the configuration cannot be read.
    """
    configured = [] if path is None else _read(Path(path), profile)
    named = [_namespace_of(text) for text in namespaces]
    names = [each.name for each in named]
    for each in named:
        if names.count(each.name) > 1:
            raise InvalidOperationError(f"namespace {each.name!r} is given twice: rename one")
        twin = next((config for config in configured if config.name == each.name), None)
        if twin is None:
            configured.append(each)
        elif each.port is not None:
            twin.port = each.port
    found = configured or [NamespaceConfig(DEFAULT_NAMESPACE)]
    for each in found:
        if each.port and any(other.port == each.port for other in found if other is not each):
            raise InvalidOperationError(f"port {each.port} is given to two namespaces: choose another for {each.name}")
    _give_ports(found, first_port)
    return found


def _give_ports(namespaces: Sequence[NamespaceConfig], first_port: int) -> None:
    taken = {each.port for each in namespaces}
    port = first_port
    for each in namespaces:
        if each.port is None:
            while port and port in taken:
                port += 1
            each.port = port if port <= MAX_PORT else 0
            taken.add(each.port)


def _read(path: Path, profile: Profile) -> list[NamespaceConfig]:
    from sbclient.emulator.config.config import read_config  # imported late, because it is rarely needed

    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOperationError(
            f"{path.name} is not UTF-8, byte {error.object[error.start]:#04x} is not valid there: save it as UTF-8"
        ) from None  # the original error shows the bytes
    return read_config(text, path.name, profile)


def _namespace_of(text: str) -> NamespaceConfig:
    name, colon, port = text.partition(":")
    is_name = bool(name) and name.replace("-", "").isascii() and name.replace("-", "").isalnum()
    is_port = not colon or (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= MAX_PORT)
    if not is_name or not is_port:
        raise InvalidOperationError(
            f"{text!r} is not a namespace: give letters, digits and hyphens, and a port from 0 to 65535 after a colon, "
            "as in contoso:5672"
        )
    return NamespaceConfig(name, int(port) if colon else None)
