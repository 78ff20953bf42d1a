"""Answer the management requests of a client with hostile bytes: `python -m tests.hostile.service [--before CHECKOUT]`.

A row shows the bytes that were sent, how much memory the client needed at its peak, for how long its event loop stood
still, and the error that the caller got. The exit status is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from sbclient.certificate import Certificate
from tests.hostile.limits import memory_limit_mib

MIB: Final = 1024 * 1024
MAX_STILL_S: Final = 1.5

_FEED: Final = b'<feed xmlns="http://www.w3.org/2005/Atom">'


class Answer(NamedTuple):
    """A hostile answer.

    Attributes:
        headers: with the status line. `{other}` is the address of another host.
        body: its parts; the connection ends after them, unless a Content-Length says where they end.
        is_valid: whether the client may take it as an empty list.
    """

    headers: str
    body: Iterable[bytes] = ()
    is_valid: bool = False


def _compressed(mib: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(_FEED), *(packer.compress(b" " * MIB) for _ in range(mib)), packer.compress(b"</feed>")]
    return b"".join(parts) + packer.flush()


def _complete(body: bytes, kind: str = "application/xml", *more: str) -> Answer:
    headers = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return Answer("\r\n".join(headers), [body])


_ENTITIES: Final = b"<!DOCTYPE a [<!ENTITY b '%s'><!ENTITY c '%s'>]>" % (b"x" * 1_000, b"&b;" * 100)


def answers() -> Iterator[tuple[str, Answer]]:
    """The hostile answers by name."""
    for status in (300, 301, 302, 303, 307, 308):
        yield f"redirect-{status}", Answer(f"HTTP/1.1 {status} X\r\nLocation: {{other}}\r\nContent-Length: 0")
    yield "compressed", _complete(_compressed(400), "application/xml", "Content-Encoding: gzip")
    yield "deflated", _complete(zlib.compress(_FEED + b" " * MIB), "application/xml", "Content-Encoding: deflate")
    yield "endless", Answer("HTTP/1.1 200 OK\r\nContent-Type: application/xml", [b" " * MIB] * 1_500)
    yield "long", _complete(_FEED + b"<a/>" * 2_000_000 + b"</feed>")
    yield "elements", _complete(_FEED + b"<a/>" * 520_000 + b"</feed>")._replace(is_valid=True)
    yield "nested", _complete(_FEED + b"<a>" * 290_000 + b"</a>" * 290_000 + b"</feed>")._replace(is_valid=True)
    yield "entities", _complete(_ENTITIES + _FEED + b"<title>" + b"&c;" * 300 + b"</title></feed>")
    yield "punycode", _complete(b"a-" + b"z9" * 200_000, "application/xml; charset=punycode")
    yield (
        "punycode-error",
        Answer(
            "HTTP/1.1 400 X\r\nContent-Type: text/plain; charset=punycode\r\nContent-Length: 400002",
            [b"a-" + b"z9" * 200_000],
        ),
    )
    yield "not-utf-8", _complete(b"\xff\xfe" + _FEED)
    yield "incomplete", Answer("HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 1000", [_FEED])
    yield "no-http", Answer("SSH-2.0-OpenSSH_9.6")
    yield "long-header", Answer("HTTP/1.1 200 OK\r\nA: " + "x" * 100_000, [b""])
    yield "wait-a-year", Answer("HTTP/1.1 429 X\r\nRetry-After: 31536000\r\nContent-Length: 0")


class Service(NamedTuple):
    """A server with hostile answers.

    Attributes:
        port: its port.
        requests: the heads of the requests.
        elsewhere: the heads of the requests that came to the other host.
        sent: the number of bytes of the answers.
    """

    port: int
    requests: list[bytes]
    elsewhere: list[bytes]
    sent: list[int]


@asynccontextmanager
async def serving(answer: Answer, certificate: Certificate | None) -> AsyncIterator[Service]:
    """Answer each request the same way, on a free port of this machine; without a certificate, without TLS."""
    context = await certificate.server_context() if certificate is not None else None
    requests: list[bytes] = []
    elsewhere: list[bytes] = []
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[bytes], then: str) -> None:
        try:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            for part in (f"{answer.headers}\r\n\r\n".replace("{other}", then).encode(), *answer.body):
                if writer.is_closing():
                    break
                writer.write(part)
                await writer.drain()
                sent.append(len(part))
        except (asyncio.IncompleteReadError, OSError, ssl.SSLError):
            pass  # the client hung up
        finally:
            writer.close()

    other = await asyncio.start_server(lambda r, w: serve(r, w, elsewhere, "/"), "127.0.0.1", 0, ssl=context)
    scheme = "http" if context is None else "https"
    then = f"{scheme}://127.0.0.1:{other.sockets[0].getsockname()[1]}/q"
    server = await asyncio.start_server(lambda r, w: serve(r, w, requests, then), "127.0.0.1", 0, ssl=context)
    try:
        yield Service(server.sockets[0].getsockname()[1], requests, elsewhere, sent)
    finally:
        server.close()
        other.close()


_CLIENT: Final = """
import asyncio, json, re, sys, time
import aiohttp, azure.servicebus.aio.management
from azure.core.pipeline.transport import AioHttpTransport
from sbclient.administration import ServiceBusAdministrationClient

def peak_mib():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+)", file.read())[1]) / 1024

async def main(port, path):
    still_s = 0.0

    async def watch():
        nonlocal still_s
        while True:
            began_at = time.perf_counter()
            await asyncio.sleep(0.005)
            still_s = max(still_s, time.perf_counter() - began_at)

    text = f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    client = ServiceBusAdministrationClient.from_connection_string(text, connection_verify=path)
    async with client:
        before = peak_mib()
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.01)
        try:
            result = str([each async for each in client.list_queues()])
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        await asyncio.sleep(0.01)
        watching.cancel()
    print(json.dumps({"peak": peak_mib() - before, "still_s": still_s, "result": result}))

asyncio.run(main(*sys.argv[1:]))
"""


async def measure(name: str, answer: Answer, certificate: Certificate, checkout: Path | None) -> bool:
    """Run a client against one answer, print its row, and return whether it kept the limits."""
    folder = checkout or Path(__file__).parents[2]
    async with serving(answer, certificate) as service:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CLIENT, str(service.port), str(certificate.path)),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        out, _ = await process.communicate()
    seen = json.loads(out.splitlines()[-1])
    sent_mib, is_served = sum(service.sent) / MIB, not service.elsewhere
    is_good = is_served and seen["peak"] <= memory_limit_mib(sent_mib) and seen["still_s"] <= MAX_STILL_S
    print(
        f"{name:16} {'before' if checkout else 'after':6} {sent_mib:8.2f} {seen['peak']:8.1f} MiB "
        f"{seen['still_s']:6.2f} s {len(service.requests)}+{len(service.elsewhere)} requests  {seen['result'][:90]}",
        flush=True,
    )
    return is_good


def main() -> int:
    """Run all answers; the exit status is 1 if one exceeds a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also try the version in this directory")
    options = parser.parse_args()
    is_good = True
    with TemporaryDirectory() as directory:
        certificate = Certificate(Path(directory))
        certificate.make()
        for name, answer in answers():
            for checkout in [*([options.before] if options.before else []), None]:
                kept = asyncio.run(measure(name, answer, certificate, checkout))
                is_good = is_good and (kept or checkout is not None)
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
