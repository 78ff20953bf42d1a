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

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_PORT: Final = 65_535


def chosen_namespaces(
    namespaces: Sequence[str], path: str | Path | None, profile: Profile, *, first_port: int = 0
) -> list[NamespaceConfig]:
    """The namespaces to serve: those of the configuration, then those given by name.

    Args:
        namespaces: `"contoso"`, `"contoso:5672"` or `"contoso:5671,443"`; for a namespace of the configuration, only
            the ports are used.
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
            twin.port, twin.more_ports = each.port, each.more_ports
    found = configured or [NamespaceConfig(DEFAULT_NAMESPACE)]
    ports = [port for each in found for port in (each.port, *each.more_ports)]
    for each in found:
        for port in (each.port, *each.more_ports):
            if port and ports.count(port) > 1:
                raise InvalidOperationError(f"port {port} is given twice: choose another for {each.name}")
    _give_ports(found, first_port)
    return found


def _give_ports(namespaces: Sequence[NamespaceConfig], first_port: int) -> None:
    taken = {port for each in namespaces for port in (each.port, *each.more_ports)}
    port = first_port
    for each in namespaces:
        if each.port is None:
            while port and port in taken:
                port += 1
            each.port = port if port <= MAX_PORT else 0
            taken.add(each.port)


def _read(path: Path, profile: Profile) -> list[NamespaceConfig]:
    from sbclient.emulator.config.config import read_config  # imported late, because it is rarely needed

    return read_config(read_text(path), path.name, profile)


def read_text(path: Path) -> str:
    """Return the text of a configuration, which may be a pipe or a device.

    Raises:
        InvalidOperationError: it is too long, or not UTF-8.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InvalidOperationError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: name another file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidOperationError(
            f"{path.name} is not UTF-8, byte {error.object[error.start]:#04x} is not valid there: save it as UTF-8"
        ) from None  # the original error shows the bytes


def _namespace_of(text: str) -> NamespaceConfig:
    name, colon, numbers = text.partition(":")
    texts = numbers.split(",") if colon else []
    is_name = bool(name) and name.replace("-", "").isascii() and name.replace("-", "").isalnum()
    ports = [int(each) for each in texts if each.isascii() and each.isdigit() and len(each) < 6]
    if not is_name or len(ports) < len(texts) or max(ports, default=0) > MAX_PORT or 0 in ports[1:]:
        raise InvalidOperationError(
            f"{text!r} is not a namespace: give letters, digits and hyphens, and after a colon a port from 0 to 65535, "
            "or several from 1, as in contoso:5672 or contoso:5671,443"
        )
    return NamespaceConfig(name, ports[0] if ports else None, more_ports=tuple(ports[1:]))
