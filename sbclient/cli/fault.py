"""`sbclient fault`: adds, lists and removes the faults of an emulator, by its control API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sbclient.broker.faults import Operation
from sbclient.cli.common import command, print_note, print_result, run, seconds
from sbclient.cli.completion import destinations
from sbclient.cli.control import Control, EmulatorString, HttpPort, NamespaceName
from sbclient.emulator.control.fault_json import ERROR_NAMES, KINDS
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError

fault = typer.Typer(
    help="Add, list and remove the faults of an emulator.",
    epilog="Example: sbclient fault list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@fault.command()
@command
def add(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", autocompletion=lambda: list(KINDS), help=f"One of {', '.join(KINDS)}.")
    ],
    entity: Annotated[
        str | None,
        typer.Option(autocompletion=destinations, help="Queue, topic or subscription. Default: the whole namespace."),
    ] = None,
    fragment: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Fragment of a partitioned --entity. Repeatable. Default: all."),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            autocompletion=lambda: list(Operation),
            help="Operation, such as send. Repeatable. Default: all.",
        ),
    ] = None,
    probability: Annotated[float | None, typer.Option(help="Of each occurrence, above 0 up to 1. Default: 1.")] = None,
    count: Annotated[int | None, typer.Option(help="Occurrences after which it ends. Default: no limit.")] = None,
    duration: Annotated[
        float | None,
        typer.Option(parser=seconds(), metavar="DURATION", help="Time after which it ends. Default: no limit."),
    ] = None,
    latency: Annotated[
        float | None, typer.Option(parser=seconds(), metavar="DURATION", help="Delay, for slow and latency.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(autocompletion=lambda: list(ERROR_NAMES), help="Class of the error, for error.")
    ] = None,
    condition: Annotated[str | None, typer.Option(help="AMQP condition, for detach.")] = None,
    description: Annotated[str | None, typer.Option(help="Description of the condition, for detach.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random choices from now on.")] = None,
    primary: EmulatorString = None,
    http_port: HttpPort = None,
    namespace: NamespaceName = None,
) -> None:
    """Add a fault and print it with its number. A fault for an entity that does not exist waits for it, with a warning.

    \b
    Example: sbclient fault add down --entity orders --duration 30s
    Example: sbclient fault add error --entity orders \\
        --error ServiceBusServerBusyError --count 3
    Example: sbclient fault add latency --latency 0.2 --http-port 5300
    """
    fields = {
        "kind": kind,
        "entity": entity,
        "fragments": fragment or None,
        "operations": operation or None,
        "probability": probability,
        "count": count,
        "duration_s": duration,
        "latency_s": latency,
        "error": error,
        "condition": condition,
        "description": description,
    }
    described = {name: value for name, value in fields.items() if value is not None}

    async def work() -> dict[str, Any]:
        control = Control(primary, http_port, namespace)
        if entity is not None:
            try:
                await control.call("GET", "state", entity=entity)
            except MessagingEntityNotFoundError:
                print_note(f"warning: {entity} does not exist; the fault takes effect when it is created")
        body: Any = described if seed is None else {"seed": seed, "faults": [described]}
        added: dict[str, Any] = (await control.call("POST", "faults", body))["faults"][-1]
        return added

    _print([run(work())])


@fault.command("list")
@command
def list_(primary: EmulatorString = None, http_port: HttpPort = None, namespace: NamespaceName = None) -> None:
    """Print the active faults, one per line, each with its number.

    \b
    Example: sbclient fault list
    Example: sbclient fault list --json --http-port 5300 \\
        --namespace contoso-backup
    """
    _print(run(Control(primary, http_port, namespace).call("GET", "faults"))["faults"])


@fault.command()
@command
def remove(
    number: Annotated[int | None, typer.Argument(metavar="NUMBER", help="Number of a fault, see list.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Remove all faults.")] = False,
    primary: EmulatorString = None,
    http_port: HttpPort = None,
    namespace: NamespaceName = None,
) -> None:
    """Remove one fault or all, and print those that are left. Exit status 5: there is no such fault.

    \b
    Example: sbclient fault remove 3
    Example: sbclient fault remove --all --http-port 5300
    """

    async def work() -> dict[str, Any]:
        if (number is None) is not is_all:
            raise InvalidOperationError("give the number of a fault, or --all")
        what = "faults" if number is None else f"faults/{number}"
        return await Control(primary, http_port, namespace).call("DELETE", what)

    _print(run(work())["faults"])


def _print(faults: list[dict[str, Any]]) -> None:
    for each in faults:
        facts = {name: value for name, value in each.items() if name not in ("id", "kind")}
        texts = [
            f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}" for name, value in facts.items()
        ]
        print_result(each, "  ".join([f"{each['id']}", each["kind"], *texts]))
