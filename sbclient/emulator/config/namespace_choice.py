"""Which namespaces an emulator serves, and on which ports."""

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
    """The namespaces to serve: those of a configuration, then those that are asked for by name.

    Args:
        namespaces: `"contoso"` or `"contoso:5672"`; one that is configured as well takes its port from here.
        path: of the configuration, if there is one.
        first_port: of the first namespace for which no port is named; the next ones have the ports after it that are
            not taken by others. 0 = any that are free.

    Raises:
        InvalidOperationError: a name or port cannot be used, or is there twice; the configuration is not UTF-8.
        ConfigError: the configuration cannot be used.
        OSError: it cannot be read.
    """
    configured = [] if path is None else _read(Path(path), profile)
    asked = [_namespace_of(text) for text in namespaces]
    names = [each.name for each in asked]
    for each in asked:
        if names.count(each.name) > 1:
            raise InvalidOperationError(f"namespace {each.name!r} is named twice: rename one")
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
    from sbclient.emulator.config.config import read_config  # not needed by those who have no file

    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOperationError(
            f"{path.name} is not UTF-8, byte {error.object[error.start]:#04x} has no meaning in it: save it as UTF-8"
        ) from None  # the error has the bytes
    return read_config(text, path.name, profile)


def _namespace_of(text: str) -> NamespaceConfig:
    name, colon, port = text.partition(":")
    is_name = bool(name) and name.replace("-", "").isascii() and name.replace("-", "").isalnum()
    is_port = not colon or (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= MAX_PORT)
    if not is_name or not is_port:
        raise InvalidOperationError(
            f"{text!r} names no namespace: give letters, digits and hyphens, and a port from 0 to 65535 after a colon, "
            "as in contoso:5672"
        )
    return NamespaceConfig(name, int(port) if colon else None)
