"""What the README and the pages in docs/ show runs as it stands, and what they list is what there is."""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from shutil import which
from typing import Any, Final

import pytest
from azure.core.credentials import AccessToken

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator
from sbclient.options import PAIR_OPTIONS, RETRY_OPTIONS, SYPHON_LIMITS
from sbclient.testing import MemoryPair
from sbclient.transport.memory import transport as memory
from sbclient.worker.settings import SETTINGS as WORKER_SETTINGS
from tests.pages import constants, members, reference
from tests.pages.defaults import wrong_defaults
from tests.pages.every import TABLES
from tests.pages.table import COMMAND, DOCS, Part

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
PAGES: Final = [README, *sorted((ROOT / "docs").glob("*.md"))]
GENERATED: Final = rf"^<!-- (.+): {COMMAND} -->$"
NEEDS_SPARK: Final = ("spark.md", "spark-reference.md")


def found_in(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def blocks() -> Iterator[Any]:
    for page in PAGES:
        if page.name not in NEEDS_SPARK:
            for number, block in enumerate(found_in(page), start=1):
                yield pytest.param(block, id=f"{page.name} {number}")


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block, "docs", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_hosts", {})
    monkeypatch.setattr(logging.getLogger("sbclient"), "handlers", logging.getLogger("sbclient").handlers[:])
    monkeypatch.setattr(logging.getLogger("sbclient"), "level", logging.NOTSET)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # of azure-servicebus over WebSockets
@pytest.mark.parametrize("block", list(blocks()))
def test_each_block_runs(block: str) -> None:
    run(block)


async def _with_a_queue(main: Any) -> int:
    async with ServiceBusClient.from_connection_string("memory://readme") as client:
        await client.administration.create_queue("orders")
        await main("memory://readme", "memory://readme-backup")
        return (await client.administration.get_queue_runtime_properties("orders")).active_message_count


def test_the_first_block_of_the_readme_sends_a_message() -> None:
    assert asyncio.run(_with_a_queue(run(found_in(README)[0])["main"])) == 1


@pytest.mark.real_time
async def test_the_python_lines_send_to_the_emulator() -> None:
    (block,) = (block for block in found_in(ROOT / "docs" / "emulator.md") if "def send(" in block)
    async with (
        Emulator("contoso") as emulator,
        ServiceBusClient.from_connection_string(emulator.connection_string) as client,
    ):
        await client.administration.create_queue("orders")
        await asyncio.to_thread(run(block)["send"], emulator.connection_string)
        counts = await client.administration.get_queue_runtime_properties("orders")
    assert counts.active_message_count == 1


@pytest.mark.real_time
async def test_the_python_lines_exchange_messages_over_http() -> None:
    (block,) = (block for block in found_in(ROOT / "docs" / "emulator.md") if "def exchange(" in block)
    async with Emulator("contoso") as emulator:
        emulator.create_queue("orders")
        found = await asyncio.to_thread(run(block)["exchange"], emulator.ports["contoso"])
        assert len(emulator.context().host.namespace.queue("orders")) == 0
    assert found == [b"one", b"two"]


@pytest.mark.real_time
@pytest.mark.parametrize("missing", [name for name in ("sh", "curl", "openssl") if which(name) is None] or [None])
async def test_the_shell_lines_exchange_messages_over_http(missing: str | None, tmp_path: Path) -> None:
    if missing is not None:
        pytest.skip(f"{missing} is not installed")
    section = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8").partition("### Messages over HTTP")[2]
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", section.partition("\n### ")[0], re.M | re.S))
    async with Emulator("contoso") as emulator:
        emulator.create_queue("orders", max_delivery_count=1)
        script = lines.replace("5672", str(emulator.ports["contoso"]))
        shell = await asyncio.create_subprocess_exec("sh", "-eu", "-c", script, cwd=tmp_path, stdout=-1, stderr=-1)
        said, complaint = await shell.communicate()
        orders = emulator.context().host.namespace.directory.find("orders")[0]
        left = [len(fragment) for queue in orders.queues() for fragment in queue.fragments]
    assert (shell.returncode, complaint) == (0, b"")
    assert said == b"an orderthree"  # two of the messages: one was unlocked and so dead-lettered
    assert left == [0, 0]


async def test_the_tasks_do_what_they_say(pair: MemoryPair, client: ServiceBusClient) -> None:
    """Each function of the page, on one paired client; the queue `orders` exists."""
    tasks = {name: task for block in found_in(ROOT / "docs" / "tasks.md") for name, task in run(block).items()}
    await client.administration.create_queue("visits", requires_session=True)
    await tasks["send_many"](client, [letter * 150_000 for letter in "ab"] + ["c"])
    assert [text[0] for text in await tasks["receive"](client)] == ["a", "b", "c"]
    assert await tasks["visit"](client) == ["customer 42: hello", "customer 42: goodbye"]
    assert await tasks["subscribe"](client) == ["costs 5"]
    async with client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("lost", application_properties={"country": "unknown"}))
        assert await tasks["receive"](client) == []
        assert await tasks["send_again"](client) == 1
    await tasks["replace"](client)
    await tasks["schedule"](client)
    client.pair.force_failover("orders")
    await tasks["send_many"](client, ["diverted"])
    assert await tasks["drain"](client) == 1
    async with client.get_queue_receiver("orders") as receiver:
        left = [(str(message), message.state.name) for message in await receiver.peek_messages(9)]
    assert sorted(left) == [
        ("a reminder", "SCHEDULED"),
        ("diverted", "ACTIVE"),
        ("lost, checked", "ACTIVE"),
    ]


class TokenCredential:
    """As of azure-identity; the token is one that `--auth jwt-any` accepts."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        header, claims = b64encode(b'{"alg":"none"}').decode(), b64encode(b'{"exp":99999999999}').decode()
        return AccessToken(f"{header}.{claims.rstrip('=')}.none", 99_999_999_999)


@pytest.mark.real_time
async def test_the_lines_with_a_token_credential_send_to_the_emulator() -> None:
    (block,) = (block for block in found_in(ROOT / "docs" / "emulator.md") if "def send_with_token(" in block)
    async with Emulator("contoso", auth="jwt-any") as emulator:
        emulator.create_queue("orders")
        port, certificate = emulator.ports["contoso"], str(emulator.certificate_path)
        await run(block)["send_with_token"](TokenCredential(), port, certificate)
        async with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
            counts = await client.administration.get_queue_runtime_properties("orders")
    assert counts.active_message_count == 2


def test_the_two_commands_are_the_ones_that_are_checked() -> None:
    text = README.read_text(encoding="utf-8")
    assert "python -m pip install '.[emulator]' && sbclient demo" in text
    assert "python -m pip install -e '.[dev]' && python -m pytest" in text
    assert "pip install --quiet -e '.[dev]'" in (ROOT / ".ci/run").read_text()


def test_the_reference_is_up_to_date() -> None:
    text = reference.page()
    assert " at 0x" not in text, "an address, which differs in each process"
    assert reference.PAGE.read_text(encoding="utf-8") == text, f"run {COMMAND}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_generated_table_is_up_to_date(table: Part) -> None:
    pytest.importorskip(table.needs)
    assert (DOCS / table.page).read_text(encoding="utf-8") == table.page_text(), f"run {COMMAND}"


def test_every_generated_table_of_a_page_is_known() -> None:
    places = {f"{page.name}: {name}" for page in PAGES for name in re.findall(GENERATED, page.read_text("utf-8"), re.M)}
    assert places == {table.name for table in TABLES}


DECLARED: Final = [*PAIR_OPTIONS.values(), *SYPHON_LIMITS.values(), *RETRY_OPTIONS.values(), *WORKER_SETTINGS.values()]
DEFAULTS: Final = {
    name: each.shown(each.default)
    for each in DECLARED
    if each.default is not None and not isinstance(each.default, bool) and not each.is_secret
    for name in (each.name, each.option)
}
"""Of the options that have one, by both of their names."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_default_in_a_sentence_is_the_declared_one(page: Path) -> None:
    assert not list(wrong_defaults(page.read_text(encoding="utf-8"), DEFAULTS))


def test_another_default_in_a_sentence_is_found() -> None:
    said = "After `--wait` (default 5 s). `--count` is 100; once a\nminute (`pause`), `mode=peek`, the default."
    defaults = {"--wait": "5 s", "--count": "100", "pause": "1 min", "mode": "peek"}
    assert not list(wrong_defaults(said, defaults))
    for name in defaults:
        assert len(list(wrong_defaults(said, defaults | {name: "50 s"}))) == 1


def test_no_text_has_the_former_number_of_a_constant() -> None:
    former = "".join(f"\n{line}" for line in constants.stale())
    assert not former, f"correct those of these lines that mean the constant, then run {COMMAND}:{former}"
    assert constants.constants() == constants.recorded(), f"run {COMMAND}"


def test_no_text_is_left_unread_after_a_new_member_of_a_kind() -> None:
    unread = list(members.additions())
    assert not unread, "\n".join([*unread, f"then run {COMMAND}"])
    assert members.text() == members.PATH.read_text(encoding="utf-8"), f"run {COMMAND}"


def test_the_texts_that_a_new_member_may_make_incomplete_are_found() -> None:
    found = "\n".join(members.places("worker setting", "survey_pause"))
    assert re.search(r"docs/syphon\.md:\d+: .*`--probe-interval` and `--survey-interval`", found)  # names two
    assert re.search(r"docs/syphon\.md:\d+: .*\bsurvey\b", found)  # has a word of the name
    assert re.search(r"sbclient/worker/service\.py names .*\bprobe_interval\b", found)
    found = "\n".join(members.places("dead-letter reason", "DestinationFull"))
    assert re.search(r"docs/syphon\.md:\d+: What is known of the reasons", found)  # speaks of the kind
    assert re.search(r"sbclient/cli/dead_letter\.py names .*\bDestinationRefused\b", found)
    found = "\n".join(members.places("request of the control API", "POST unlock"))
    assert re.search(r"sbclient/emulator/page/static/message\.js names .*\bPOST resubmit\b", found)
    assert "GET state" not in found  # a word that is everywhere


def test_numbers_are_found_as_texts_write_them() -> None:
    for name, value, forms in (
        ("LONGEST_WAIT", "7776000 s", ("more than 90 days ago", "a 90-day wait", "2,160 h")),
        ("GRACE_S", "60.0", ("within a minute", "one minute", "60 seconds", "`60 s`", "1 min")),
        ("PAUSE_S", "0.5", ("500 ms",)),
        ("LEAST_S", "1.5", ("waits 1.5 s",)),
        ("MAX_BYTES", "262144", ("256 KiB", "262,144 bytes")),
        ("MAX_READ", "10000", ("up to 10,000 messages",)),
        ("MAX_VIEWERS", "20", ("at most 20 viewers",)),
        ("TRIES_UNTIL_EMPTY", "3", ("after three failed tries",)),
    ):
        written = constants.written(f"sbclient/a.py: {name}", value)
        assert [form for form in forms if not written.search(form)] == [], name
        assert not written.search(
            "190 days, 4,160 h, 61 s, 1256 KiB, 110,000, 10,000.5, 120 viewers, thirteen tries"
        ), name


OPTIONS: Final = {field.name for field in fields(PairedNamespaceOptions)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_option_of_the_pair_is_given_what_it_takes(page: Path) -> None:
    for name, value in re.findall(r"`(\w+)=([^`…]+)`", page.read_text(encoding="utf-8")):
        if name in OPTIONS and not value.isidentifier():  # a word alone is an option of a command
            PairedNamespaceOptions(**{name: eval(value, {"timedelta": timedelta})})


def linked_from(page: Path) -> Iterator[Path]:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        yield (page.parent / target).resolve()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in_and_no_paragraph_is_there_twice(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
    # Names of the environment stand in code: what is left are words such as THESE_NUMBERS.
    assert re.findall(r"\b[A-Z]+_[A-Z_]+\b|\bTODO\b|\bFIXME\b|\bXXX\b", prose) == []
    paragraphs = [each for each in re.split(r"\n\n+", prose) if len(each) > 100 and not each.startswith("|")]
    beginnings = [each[:100] for each in paragraphs]
    assert [each for each in beginnings if beginnings.count(each) > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    assert [str(target) for target in linked_from(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert {page.resolve() for page in PAGES} - {README.resolve()} <= set(linked_from(README))


def test_every_picture_is_there_is_shown_and_is_small() -> None:
    folder = ROOT / "docs" / "images"
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == set(folder.iterdir())
    assert [path.name for path in sorted(shown) if path.stat().st_size > 150_000] == []


def test_each_folder_and_root_file_has_its_line_in_the_readme_of_the_tests() -> None:
    """What each folder of tests proves, and which tests to run after a change of a folder or file of the package."""
    proves, _, runs = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").partition("## What to run after")
    assert folders(proves) >= {f"{path.parent.name}/" for path in (ROOT / "tests").glob("*/__init__.py")}
    rows = [row.split(" | ") for row in re.findall(r"^\| (`.+) \|$", runs, re.M)]
    packages = {f"{path.parent.name}/" for path in (ROOT / "sbclient").glob("*/__init__.py")} | {"sbclient_spark/"}
    places = {name.removeprefix("sbclient/") for changed, _ in rows for name in re.findall(r"`([^`]+)`", changed)}
    files = {path.name for path in (ROOT / "sbclient").glob("[!_]*.py")}
    assert packages | files <= places, "add it to a row of 'What to run after a change' in tests/README.md"
    assert [each for each in places if not any((ROOT / top / each).exists() for top in ("sbclient", ""))] == []
    assert [
        name for _, run in rows for name in re.findall(r"`([^`]+)`", run) if not (ROOT / "tests" / name).exists()
    ] == []


def folders(text: str) -> set[str]:
    return set(re.findall(r"`(\w+/(?:\w+/)?)`", text))
