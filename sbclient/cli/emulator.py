"""`sbclient emulator`: serves namespaces of the bundled broker on local ports until interrupted."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sbclient.broker.profile import PROFILES
from sbclient.cli import startup_signals
from sbclient.cli.command import command_of
from sbclient.cli.control import KEY_VARIABLE
from sbclient.emulator.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY, AuthorizationMode
from sbclient.errors import ServiceBusError

BAD_INPUT: Final = 2
HTTP_PORT: Final = 5300
"""The default, as of Microsoft's emulator."""

HIDDEN_KEY: Final = "<your key>"
EXPOSED: Final = "warning: other machines can reach this emulator, which is made for one machine: see docs/security.md"
CONNECTION_VARIABLES: Final = ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_SECONDARY_CONNECTION_STRING")
"""Variables from which the commands read the primary and the secondary."""

TRUST_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables by which the management clients of Azure trust a certificate: the blocking and the async ones."""


@dataclass(slots=True, repr=False)
class Options:
    """The options of the command."""

    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT[,PORT]]",
            help="Name and port of a namespace; port 0 = any free one. Further ports are for clients that know only a "
            "host name: contoso:5671,443. Repeatable. Default: sbemulatorns.",
        ),
    ] = None
    config: Annotated[Path | None, typer.Option(help="Config.json of Microsoft's emulator.")] = None
    first_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the first namespace without one; others count up.")
    ] = 5672
    profile: Annotated[
        str, typer.Option(autocompletion=lambda: [*PROFILES], help=f"Tier and year: {', '.join(PROFILES)}.")
    ] = "std-2021"
    front_ends: Annotated[
        int,
        typer.Option(
            min=1,
            help="Front ends of each namespace. Each caches messages of partitioned entities if there are several.",
        ),
    ] = 1
    auth: Annotated[
        str,
        typer.Option(
            metavar="|".join(AuthorizationMode),
            autocompletion=lambda: [*AuthorizationMode],
            help="'sas' checks tokens; 'jwt-any' also accepts any JSON web token; 'none'.",
        ),
    ] = "sas"
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            show_default="5300, or a free one if it is in use",
            help="Port for the page, health and management over plain HTTP; 0 = any free one. Faults do not affect it. "
            "/$control addresses the first namespace, or another one with ?namespace=NAME.",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all.")] = "127.0.0.1"
    key: Annotated[
        str,
        typer.Option(
            envvar=KEY_VARIABLE,
            show_envvar=True,
            show_default=False,
            help="Key of the root policy.",
        ),
    ] = ROOT_KEY
    allow_public_key: Annotated[
        bool,
        typer.Option("--allow-public-key", help="Accept the default key with a --host that other machines can reach."),
    ] = False
    seed: Annotated[int | None, typer.Option(help="Seed of the broker's random choices.")] = None
    tls_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further name in the certificate, besides localhost. Repeatable."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            metavar="DIR",
            help="Directory that keeps entities and messages over a restart, also of an emulator that is killed.",
        ),
    ] = None
    fsync: Annotated[
        bool, typer.Option("--fsync", help="With --data: acknowledged messages survive a loss of power. Slower.")
    ] = False
    deviations: Annotated[
        bool, typer.Option("--deviations", help="Print the differences from Service Bus and exit.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print results and errors as JSON.")] = False

    def emulator(self) -> Emulator:
        """Return the emulator, not started.

        Raises:
            ServiceBusError, OSError, UnicodeDecodeError: an option or the configuration is invalid.
        """
        return Emulator(
            *(self.namespace or ()),
            first_port=self.first_port,
            config=self.config,
            host=self.host,
            http_port=HTTP_PORT if self.http_port is None else self.http_port,
            needs_http_port=self.http_port is not None,
            profile=self.profile,
            front_end_count=self.front_ends,
            auth=self.auth,
            key=self.key,
            allow_public_key=self.allow_public_key,
            seed=self.seed,
            certificate_names=tuple(self.tls_name or ()),
            data=self.data,
            fsync=self.fsync,
        )


def _serve_until_signal(options: Options) -> None:
    """Serve namespaces of the bundled broker to any Service Bus client.

    Each port accepts AMQP and HTTP, with and without TLS. Exit status: 0 ended by a signal; 1 cannot write to --data;
    2 invalid options or configuration, a port or --data in use, or damaged data.

    \b
    Example: sbclient emulator
    Example: sbclient emulator --namespace contoso:5671,443 \\
        --tls-name contoso.servicebus.windows.net
    Example: sbclient emulator --namespace contoso:5672 \\
        --namespace contoso-backup:5673 --config Config.json
    Example: sbclient emulator --data ~/.local/share/sbclient
    Example: sbclient emulator --deviations
    """
    if options.deviations:
        _show_deviations(as_json=options.as_json)
        return
    try:
        served = options.emulator()
        with _printed_warnings():
            asyncio.run(_serve(served, options.data, as_json=options.as_json))
    except (ServiceBusError, OSError, UnicodeDecodeError) as error:
        _print_error(str(error), type(error).__name__, BAD_INPUT, as_json=options.as_json)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        raise typer.Exit from None
    if served.failure is not None:
        _print_error(f"cannot write to {options.data}: {served.failure}", "OSError", 1, as_json=options.as_json)
        raise typer.Exit(1)


emulator = command_of(_serve_until_signal)


def _print_error(text: str, kind: str, status: int, *, as_json: bool) -> None:
    from sbclient.cli.common import print_error  # imports the client, which the emulator does not need

    print_error("emulator", text, kind, status, as_json=as_json)


@contextmanager
def _printed_warnings() -> Iterator[None]:
    """Print warnings of the log on stderr."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("sbclient emulator: warning: %(message)s"))
    logger = logging.getLogger("sbclient")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _serve(served: Emulator, data: Path | None, *, as_json: bool) -> None:
    """Serve until SIGINT or SIGTERM, or until `data` cannot be written."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
            loop.add_signal_handler(number, ended.set)
    served.on_failure = ended.set
    startup_signals.release()
    async with served:
        if served.is_exposed:
            typer.echo(EXPOSED, err=True)
        certificate: Path | None = None
        try:
            # Before the connection strings are printed: a client reads which certificates it trusts when it starts.
            certificate = await asyncio.to_thread(lambda: served.certificate_path)
        except (OSError, ModuleNotFoundError) as error:
            advice = ": set XDG_CACHE_HOME to a writable directory" if isinstance(error, OSError) else ""
            text = f"TLS is unavailable without a certificate ({error}){advice}"
            _print_error(text, type(error).__name__, 0, as_json=as_json)  # serving continues
        show: Callable[[Emulator, Path | None, Path | None], None] = _show_json if as_json else _show
        show(served, certificate, data)
        sys.stdout.flush()
        await ended.wait()


def _connection_strings(served: Emulator) -> dict[str, str]:
    """Return the connection strings with a key of the user replaced."""
    found = {}
    for name, text in served.connection_strings.items():
        key = served.root_key(name)
        field = "SharedAccessKey={};"  # other parts of the text may contain the key as well
        found[name] = text if key == ROOT_KEY else text.replace(field.format(key), field.format(HIDDEN_KEY))
    return found


def _show_json(served: Emulator, certificate: Path | None, data: Path | None) -> None:
    facts: dict[str, Any] = {
        "connection_strings": _connection_strings(served),
        "ports": dict(served.ports),
        "http_port": served.http_port,
        "certificate": None if certificate is None else str(certificate),
        "data": None if data is None else str(data),
    }
    typer.echo(json.dumps(facts))


def _show_deviations(*, as_json: bool) -> None:
    from dataclasses import asdict

    from sbclient.cli.deviations import deviations

    if as_json:
        typer.echo(json.dumps([asdict(each) for each in deviations()], ensure_ascii=False))
        return
    for each in deviations():
        typer.echo(f"{each.id}\n  Service Bus {each.service}\n  here it {each.ours}\n  why: {each.why}")


def _show(served: Emulator, certificate: Path | None, data: Path | None) -> None:
    width = max(map(len, served.namespaces))
    texts = _connection_strings(served)
    for name, text in texts.items():
        typer.echo(f"{name:{width}}  {text}")
    typer.echo("\nfor the other commands:")
    for variable, text in zip(CONNECTION_VARIABLES, texts.values(), strict=False):
        typer.echo(f"             export {variable}='{text}'")
    typer.echo(f"\npage         http://localhost:{served.http_port}/  (and at / of each port above)")
    typer.echo(f"health       http://localhost:{served.http_port}/health")
    if certificate is not None:
        typer.echo("for the management clients, which require TLS, in a shell that then trusts no other server:")
        for name in TRUST_VARIABLES:
            typer.echo(f"             export {name}={certificate}")
    fate = "its messages are lost" if data is None else f"{data} keeps its messages"
    typer.echo(f"ready; Ctrl-C ends the emulator, and {fate}")
