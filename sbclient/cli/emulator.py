"""`sbclient emulator`: namespaces of the bundled broker on ports of this machine, until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sbclient.cli import startup_signals
from sbclient.emulator.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY
from sbclient.errors import ServiceBusError

BAD_INPUT: Final = 2
HIDDEN_KEY: Final = "<the key you gave>"
COLLECT_AFTER: Final = 50_000
"""New objects after which Python looks for cycles, instead of after 700. What is stored holds none, and to look through
all of it again and again took a third of the time of a full emulator."""

TRUST_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""What makes the management clients trust a certificate: the first for blocking ones, the second for asynchronous."""


def emulator(
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="Its name, and its port; port 0 = any free one. Repeatable. Default: sbemulatorns.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A Config.json, as Microsoft's emulator reads it.")] = None,
    first_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Of the first namespace without a port; the next ones follow.")
    ] = 5672,
    profile: Annotated[
        str, typer.Option(help="Tier and year: basic-2021, std-2015, std-2017, std-2021, prem-2017, prem-2021.")
    ] = "std-2021",
    auth: Annotated[
        str, typer.Option(help="'sas': tokens are checked; 'jwt-any': any JSON web token as well; 'none'.")
    ] = "sas",
    http_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="For the page, health and management over plain HTTP, 0 = any free one. No fault strikes it. Under "
            "/$control it means the first namespace, with ?namespace=NAME at the end of the address another one.",
        ),
    ] = 5300,
    host: Annotated[str, typer.Option(help="The address to listen on, 0.0.0.0 = all.")] = "127.0.0.1",
    key: Annotated[
        str,
        typer.Option(
            envvar="SBCLIENT_EMULATOR_KEY", show_envvar=True, show_default=False, help="Of RootManageSharedAccessKey."
        ),
    ] = ROOT_KEY,
    seed: Annotated[int | None, typer.Option(help="Repeats every choice of the broker.")] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name the certificate bears besides localhost. Repeatable."),
    ] = None,
    deviations: Annotated[
        bool, typer.Option("--deviations", help="Print where this differs from Service Bus, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where to connect, or what is asked for, as JSON; errors too.")
    ] = False,
) -> None:
    """Serve namespaces of the bundled broker to any Service Bus client.

    Each port takes AMQP, HTTP, and both over TLS. Exit status: 0 interrupted or ended, 2 the options, the configuration
    or a port cannot be used.

    \b
    Example: sbclient emulator
    Example: sbclient emulator --namespace contoso:5672 --namespace contoso-backup:5673 --config Config.json
    Example: sbclient emulator --deviations
    """
    if deviations:
        _show_deviations(as_json=as_json)
        return
    try:
        served = Emulator(
            *(namespace or ()),
            first_port=first_port,
            config=config,
            host=host,
            http_port=http_port,
            profile=profile,
            auth=auth,
            key=key,
            seed=seed,
            certificate_names=tuple(tls_name or ()),
        )
        asyncio.run(_serve(served, key=key, as_json=as_json))
    except (ServiceBusError, OSError, UnicodeDecodeError) as error:
        from sbclient.cli.common import print_error  # with the client in it, which serving does without

        print_error("emulator", str(error), type(error).__name__, BAD_INPUT, as_json=as_json)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _serve(served: Emulator, *, key: str, as_json: bool) -> None:
    """Serve until the process is told to end."""
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows has no handlers; there Ctrl-C ends the loop
            loop.add_signal_handler(number, ended.set)
    startup_signals.release()
    async with served:
        certificate: Path | None = served.expected_certificate_path
        try:
            served.check_certificate_directory()
        except OSError as error:
            certificate = None
            _tell_no_certificate(error, as_json=as_json)
        show: Callable[[Emulator, str, Path | None], None] = _show_json if as_json else _show
        show(served, key, certificate)
        sys.stdout.flush()
        making = [asyncio.create_task(asyncio.to_thread(lambda: served.certificate_path))] if certificate else []
        for each in making:
            each.add_done_callback(lambda made: _tell_failure(made, as_json=as_json))
        await ended.wait()
        await asyncio.gather(*making, return_exceptions=True)


def _tell_failure(made: asyncio.Task[Path], *, as_json: bool) -> None:
    if not made.cancelled() and (error := made.exception()) is not None:
        _tell_no_certificate(error, as_json=as_json)


def _tell_no_certificate(error: BaseException, *, as_json: bool) -> None:
    """It serves on, so the status that is told is 0."""
    from sbclient.cli.common import print_error

    text = f"there is no certificate, so no TLS ({error}): set XDG_CACHE_HOME to a directory that can be written"
    print_error("emulator", text, type(error).__name__, 0, as_json=as_json)


def _connection_strings(served: Emulator, key: str) -> dict[str, str]:
    """As they are to be shown: a key that was given stays with its owner."""
    hidden = ROOT_KEY if key == ROOT_KEY else HIDDEN_KEY
    field = "SharedAccessKey={};"  # the rest of the text may have the key's letters too
    return {
        name: text.replace(field.format(key), field.format(hidden)) for name, text in served.connection_strings.items()
    }


def _show_json(served: Emulator, key: str, certificate: Path | None) -> None:
    said: dict[str, Any] = {
        "connection_strings": _connection_strings(served, key),
        "ports": dict(served.ports),
        "http_port": served.http_port,
        "certificate": None if certificate is None else str(certificate),
    }
    typer.echo(json.dumps(said))


def _show_deviations(*, as_json: bool) -> None:
    from dataclasses import asdict

    from sbclient.deviations import deviations

    for each in deviations():
        if as_json:
            typer.echo(json.dumps(asdict(each), ensure_ascii=False))
        else:
            typer.echo(f"{each.id}\n  Service Bus {each.service}\n  here it {each.ours}\n  why: {each.why}")


def _show(served: Emulator, key: str, certificate: Path | None) -> None:
    width = max(map(len, served.namespaces))
    for name, text in _connection_strings(served, key).items():
        typer.echo(f"{name:{width}}  {text}")
    typer.echo(f"\npage         http://localhost:{served.http_port}/  (and at / of each port above)")
    typer.echo(f"health       http://localhost:{served.http_port}/health")
    if certificate is not None:
        typer.echo("for the management clients, which always speak TLS:")
        for name in TRUST_VARIABLES:
            typer.echo(f"             export {name}={certificate}")
    typer.echo("ready; Ctrl-C ends it, and what is stored is gone then")
