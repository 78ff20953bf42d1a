"""One run: two namespaces, the programs, the weather; then quiet, convergence, and what is left is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any, Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue
from sbclient.errors import MessageNotFoundError, OperationTimeoutError
from sbclient.message import NamespaceSide, ServiceBusMessageState
from sbclient.options import PairedNamespaceOptions, SyphonLimits
from sbclient.rules.failover import FailoverState
from sbclient.testing import MemoryNamespace, MemoryPair
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import WorkerSettings
from sbclient.worker.systemd import ServiceManager
from tests.simulation.browser import Browser
from tests.simulation.census import stored
from tests.simulation.consumer import AUDIT, SUBSCRIPTION, Consumer, delivery_path
from tests.simulation.edges import Edges
from tests.simulation.history import Delivery, History, is_backlog_path, uid_of
from tests.simulation.network import Network, watch_sessions
from tests.simulation.operator import Operator
from tests.simulation.plan import Lane, Plan
from tests.simulation.producer import Producer
from tests.simulation.program import Program
from tests.simulation.strangers import Forger, Vandal
from tests.simulation.traffic import Unit, write_traffic

SURVEYS: Final = 5
SENT_WITHIN_S: Final = 3600.0
RECOVERED_WITHIN_S: Final = 200.0
DRAINED_BACKLOG_WITHIN_S: Final = 1300.0
"""A syphon looks for what another one has put aside every 15 min, with the longest poll."""

DRAINED_WITHIN_S: Final = 600.0
LONGEST_LOCK_S: Final = 121.0

LATEST_STOP_S: Final = 21.0
"""A worker stops within its `shutdown_timeout` of 20 s, and pauses as soon."""


class World:
    """One run of a plan, on a virtual loop.

    Attributes:
        history: what happened.
        operator: knows the entities.
        left: what is still stored at the end, as text.
        diverted_reported: what `client.pair.status()` said at the end, by client.
        copies: for each uid, how many copies each rule of an audited subscription has made.
    """

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        random = Random(f"world {plan.seed}")
        hosts = [
            MemoryNamespace(name, random=random, profile=plan.profile, front_end_count=plan.front_ends)
            for name in ("contoso", "contoso-backup")
        ]
        self._hosts = hosts
        self.pair = MemoryPair(hosts[0], hosts[1], random)
        self.history = History(trace=trace)
        self._networks = self._built(random) if plan.network is not None else {}
        self.operator = Operator(plan, self.pair, self.history, self._networks)
        self._deleting = {lane.name for lane in plan.lanes if lane.deletes and plan.network is not None}
        self._paths = {lane.name: delivery_path(lane) for lane in plan.lanes}
        self.left: list[str] = []
        self.backlog_dead: list[Delivery] = []
        self.copies: dict[str, Counter[object]] = {}

    def _built(self, random: Random) -> dict[str, Network]:
        """The networks in front of the namespaces; what the brokers do with sessions is watched."""
        assert self.plan.network is not None
        networks = {}
        for side, host in zip(("primary", "secondary"), self._hosts, strict=True):
            networks[side] = Network(host, self.plan.network, Random(random.getrandbits(64)))
            watch_sessions(host.namespace, side, self.history)
        return networks

    async def run(self) -> None:
        """From the first message to the last count."""
        plan, history = self.plan, self.history
        epoch = history.epoch = clock.true_now()
        self.operator.build()
        units: list[Unit] = []
        for lane in plan.lanes:
            units += write_traffic(plan, lane, epoch, len(units))
        history.submissions = {submission.uid: submission for unit in units for submission in unit.submissions}
        shares = [[unit for unit in units if unit.key % plan.producers == n] for n in range(plan.producers)]
        gives_up = "caller_gives_up" in plan.kinds
        producers = [
            Producer(
                share,
                history,
                epoch,
                self._is_stored,
                gives_up=gives_up,
                sends_bursts=plan.sends_bursts,
                writes_tasks="tasks" in plan.kinds,
            )
            for share in shares
        ]
        consumer = Consumer(plan.lanes, history, gives_up=gives_up)

        senders = [self._start(f"producer-{n}", one.run) for n, one in enumerate(producers)]
        receivers = [self._start("receivers", consumer.run)]
        syphons = [self._start(f"syphon-{n}", self._syphon(how)) for n, how in enumerate(plan.syphons)]
        strangers = [asyncio.get_running_loop().create_task(one) for one in self._strangers()]
        tasks = [*senders, *receivers, *syphons, *strangers]
        try:
            await self._weather(tasks, producers)
            consumer.is_calm = True
            await self._until(lambda: all(task.done() for task in strangers), SENT_WITHIN_S, tasks, "tire strangers")
            self.operator.clear_up()
            await self._until(lambda: all(one.is_done for one in producers), SENT_WITHIN_S, tasks, "send everything")
            await self._until(lambda: _all_healthy(producers), RECOVERED_WITHIN_S, tasks, "recover every entity")
            await self._end(senders)
            schedules = [submission.message.scheduled_enqueue_time_utc for submission in history.submissions.values()]
            latest = max((moment.timestamp() for moment in schedules if moment is not None), default=0.0)
            await clock.sleep(max(LONGEST_LOCK_S, latest + 1 - clock.true_now()))
            if not {"empty", "twice"}.issuperset(plan.syphons):  # of those, one run alone must drain everything, below
                await self._until(
                    lambda: not self._is_backlog_left(), DRAINED_BACKLOG_WITHIN_S, tasks, "drain the backlog"
                )
            await self._end(syphons)
            await clock.sleep(LONGEST_LOCK_S)
            await self._last_syphon()
            await self._until(lambda: not self._is_anything_active(), DRAINED_WITHIN_S, tasks, "receive everything")
        finally:
            await self._end(tasks)
            for network in self._networks.values():
                await network.close()
        if plan.has_edge:
            await Edges(self.pair, plan.profile, history, Random(f"edges {plan.seed}")).look()
        await clock.sleep(LONGEST_LOCK_S)
        await self._drain(consumer)
        self.copies = self.operator.remove_audits()
        self._count_what_is_left()

    def _is_stored(self, uid: str) -> bool:
        history = self.history
        may_expire = history.submissions[uid].message.time_to_live is not None
        may_expire = (
            may_expire or history.submissions[uid].lane in self._deleting
        )  # it may be on its way to its receiver
        if may_expire or uid in history.handed_uids or uid in history.deleted:
            return True
        likely = stored(self.pair.primary, self._paths[history.submissions[uid].lane])
        return any(uid_of(one.entry.content) == uid for one in chain(likely, *map(stored, self._hosts)))

    def _strangers(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Those who mean no good, and those who only look, in runs that have some."""
        plan, pair, history = self.plan, self.pair, self.history
        random = Random(f"strangers {plan.seed}")
        if "forged_tokens" in plan.kinds:
            host, paths = pair.primary, [(lane.name, delivery_path(lane)) for lane in plan.lanes]
            if random.random() < 0.3:
                host, paths = pair.secondary, [(queue, queue) for queue in self.operator.backlog_queues]
            yield Forger(host, history, random, paths).run(plan.traffic_s)
        if "malformed_frames" in plan.kinds:
            yield Vandal(pair.primary, history, random).run(plan.traffic_s)
        if plan.looks:
            places = [(pair.primary, delivery_path(lane)) for lane in plan.lanes]
            backlog = (*self.operator.backlog_queues, *self.operator.session_backlog_queues)
            places += [(pair.secondary, queue) for queue in backlog]
            yield Browser(history, Random(f"browser {plan.seed}"), places).run(plan.looks, plan.traffic_s)

    def _start(self, name: str, work: Callable[[Program], Awaitable[None]]) -> asyncio.Task[None]:
        program = Program(name, self.plan, self.pair, self.history, work, self._networks)
        return asyncio.get_running_loop().create_task(program.run(), name=name)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _weather(self, tasks: list[asyncio.Task[None]], producers: list[Producer]) -> None:
        """Let every incident begin and end when it is due, and look around in between."""
        plan, operator = self.plan, self.operator
        turns: list[tuple[float, Callable[[], None]]] = []
        for incident in plan.incidents:
            if incident.at_s < 0:
                continue
            turns.append((incident.at_s, lambda incident=incident: operator.begin(incident)))  # type: ignore[misc]
            end_s = min(incident.at_s + incident.span_s, plan.traffic_s)
            turns.append((end_s, lambda incident=incident: operator.end(incident)))  # type: ignore[misc]
        random = Random(f"surveys {plan.seed}")
        turns += [(random.random() * plan.traffic_s, operator.survey) for _ in range(SURVEYS)]
        for _ in range(SURVEYS):
            turns.append((random.random() * plan.traffic_s, lambda: self._look_at_quarantines(producers)))
        for at_s, turn in sorted(turns, key=lambda one: one[0]):
            await clock.sleep(max(0.0, self.history.epoch + at_s - clock.true_now()))
            _raise_failures(tasks)
            turn()
        await clock.sleep(max(0.0, self.history.epoch + plan.traffic_s - clock.true_now()))
        operator.end_all()

    def _look_at_quarantines(self, producers: list[Producer]) -> None:
        for producer in producers:
            if producer.client is not None and producer.client_name not in self.history.ended_at:
                resting = producer.client.pair.status().quarantined
                self.history.resting.append((clock.true_now(), producer.client_name, resting))

    async def _until(
        self, condition: Callable[[], bool], within_s: float, tasks: list[asyncio.Task[None]], what: str
    ) -> None:
        end_at = clock.true_now() + within_s
        while not condition():
            _raise_failures(tasks)
            if clock.true_now() > end_at:
                self.history.violated("I15", f"{within_s:g} quiet seconds were not enough to {what}")
                return
            await clock.sleep(3.0)

    # -- syphons -------------------------------------------------------------------------------------------------

    def _syphon(self, how: str) -> Callable[[Program], Awaitable[None]]:
        """A program that drains the backlog in one of these ways."""

        async def run(program: Program) -> None:
            options = self._options(enable_syphon=how == "option")
            if how == "worker":
                await self._work(program)
            async with program.client(paired=True, options=options) as client:
                if how == "option":
                    await asyncio.Event().wait()
                elif how == "run":
                    await client.run_syphon(limits=self.plan.syphon_limits)
                turn = 0
                while True:
                    turn += 1
                    program.rename(str(turn))
                    drains = [
                        client.run_syphon(until="empty", limits=self.plan.syphon_limits)
                        for _ in range(2 if how == "twice" else 1)
                    ]
                    reports = await asyncio.gather(*drains)
                    self._check_drained(program, sum(report.drained for report in reports))
                    pauses_s = (0.5, 10.0, 40.0) if any(report.drained for report in reports) else (10.0, 40.0)
                    await clock.sleep(program.random.choice(pauses_s))

        return run

    def _check_drained(self, program: Program, drained: int) -> None:
        """What syphons of one client say that they have drained, they have received."""
        name = program.client_name
        copies = {one.copy for one in self.history.handed if one.client == name and one.side == "secondary"}
        if drained > len(copies):
            self.history.violated("I17", f"{name} drained {drained} messages, and has received {len(copies)}")

    async def _work(self, program: Program) -> None:
        """Run the worker for ever: pause it, make it read its credentials again, stop it and start another one."""
        limits, random, history = self.plan.syphon_limits or SyphonLimits(), program.random, self.history
        settings = WorkerSettings(
            shutdown_timeout=20.0,
            http_port=random.choice((None, 0)),
            max_messages_per_second=limits.max_messages_per_second,
            max_messages_per_second_per_destination=limits.max_messages_per_second_per_destination,
        )
        turn = 0
        while True:
            turn += 1
            program.rename(str(turn))
            client = program.client(paired=True, options=self._options())
            worker = SyphonWorker(settings, client, manager=ServiceManager({}))
            run = asyncio.ensure_future(worker.run())
            try:
                while not run.done():
                    await clock.wait([run], random.choice((0.5, 10.0, 40.0)))
                    history.note(program.client_name, "worker", worker.state)
                    what = random.choice(("pause", "renew", "stop"))
                    if what == "renew":
                        worker.renew_credentials()
                    elif what == "pause" and worker.pause():
                        paused_at = history.now()
                        await clock.wait([run], random.choice((0.5, 15.0, 60.0)))
                        history.pauses.append((program.client_name, paused_at + LATEST_STOP_S, history.now()))
                        worker.resume()
                    elif what == "stop":
                        stopped_at = history.now()
                        worker.stop("its operator says so")
                        await asyncio.wait([run])
                        if history.now() > stopped_at + LATEST_STOP_S:
                            history.violated("I15", f"{program.client_name} took more than {LATEST_STOP_S:g} s to stop")
                self._check_drained(program, run.result().drained)
                if worker.is_late:
                    program.kill()  # as the system does when the process ends
            finally:
                run.cancel()
                await asyncio.wait([run])

    def _options(self, **changes: Any) -> PairedNamespaceOptions:
        return replace(self.plan.options, **changes)

    async def _last_syphon(self) -> None:
        async def run(program: Program) -> None:
            async with program.client(paired=True, options=self._options(provision="create")) as client:
                await client.run_syphon(until="empty")

        program = Program("last-syphon", self.plan, self.pair, self.history, run, self._networks)
        try:
            async with clock.timeout(DRAINED_WITHIN_S):
                await program.run()
        except TimeoutError:
            self.history.violated("I15", f"a syphon did not empty the backlog within {DRAINED_WITHIN_S:g} s")

    # -- the end -------------------------------------------------------------------------------------------------

    def _is_anything_active(self) -> bool:
        return any(
            one.sub_queue is None
            and one.entry.state is not ServiceBusMessageState.DEFERRED
            and not one.path.endswith(f"/{AUDIT}")
            and not is_backlog_path(one.path)
            for host in self._hosts
            for one in stored(host)
        )

    def _is_backlog_left(self) -> bool:
        """Whether a syphon has still something to do; what it has dead-lettered does not count."""
        return any(one.sub_queue is None and is_backlog_path(one.path) for one in stored(self.pair.secondary))

    async def _drain(self, consumer: Consumer) -> None:
        """Receive what is still there: put aside, dead-lettered, or given back when the receivers ended."""
        for side in self.plan.sides:
            is_elsewhere = side == "secondary"
            async with self.pair.unpaired_client(secondary=is_elsewhere, timeout=5.0, retry_total=0) as client:
                for lane in self.plan.lanes:
                    if not is_elsewhere or lane.name in self.plan.elsewhere:
                        await self._drain_lane(client, consumer, lane, side)
        async with self.pair.unpaired_client(secondary=True, timeout=5.0, retry_total=0) as client:
            for queue in (*self.operator.backlog_queues, *self.operator.session_backlog_queues):
                if self.pair.secondary.namespace.directory.get(queue) is None:
                    continue
                receiver = client.get_queue_receiver(
                    queue,
                    sub_queue=ServiceBusSubQueue.DEAD_LETTER,
                    receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
                )
                async with receiver:
                    while messages := await receiver.receive_messages(100, max_wait_time=0.1):
                        for message in messages:
                            self.backlog_dead.append(
                                Delivery(clock.true_now(), "drain", queue, uid_of(message), message, "backlog")
                            )

    async def _drain_lane(self, client: ServiceBusClient, consumer: Consumer, lane: Lane, side: NamespaceSide) -> None:
        path = delivery_path(lane)
        deferred: dict[str | None, list[int]] = {}
        for one in stored(self.pair.secondary if side == "secondary" else self.pair.primary, path):
            if one.sub_queue is None and one.entry.state is ServiceBusMessageState.DEFERRED:
                session_id = one.entry.content.session_id if lane.requires_session else None
                deferred.setdefault(session_id, []).append(one.entry.number)
        for session_id, numbers in deferred.items():
            async with _deleter(client, lane, session=session_id) as receiver:
                for number in numbers:
                    with suppress(MessageNotFoundError):  # it has expired at this very look
                        for message in await receiver.receive_deferred_messages(number):
                            consumer.note_delivery("drain", lane, message, "deferred", side)
        while True:
            try:
                session = NEXT_AVAILABLE_SESSION if lane.requires_session else None
                async with _deleter(client, lane, session=session) as receiver:
                    while messages := await receiver.receive_messages(100, max_wait_time=0.1):
                        for message in messages:
                            consumer.note_delivery("drain", lane, message, "drain", side)
            except OperationTimeoutError:
                break
            if not lane.requires_session:
                break
        async with _deleter(client, lane, dead_letters=True) as receiver:
            while messages := await receiver.receive_messages(100, max_wait_time=0.1):
                for message in messages:
                    consumer.note_delivery("drain", lane, message, "dead_letter", side)

    def _count_what_is_left(self) -> None:
        for host in self._hosts:
            for one in stored(host):
                self.left.append(f"{uid_of(one.entry.content)} {one.entry.state.name} in {one.path}")
            for entity in host.namespace.directory.all():
                for fragment in entity.body.fragments:
                    states = 3 * len({(note.path, note.session_id) for note in self.history.states})
                    if not 0 <= fragment.usage.size_bytes <= states:
                        self.history.violated(
                            "I14", f"{entity.path} is empty and counts {fragment.usage.size_bytes} bytes"
                        )
        self.operator.survey()


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _all_healthy(producers: list[Producer]) -> bool:
    clients = [one.client for one in producers if one.client is not None]
    return all(
        entity.state is FailoverState.HEALTHY for client in clients for entity in client.pair.status().entities.values()
    )


def _deleter(
    client: ServiceBusClient, lane: Lane, *, session: object = None, dead_letters: bool = False
) -> ServiceBusReceiver:
    sub_queue = ServiceBusSubQueue.DEAD_LETTER if dead_letters else None
    arguments = {
        "session_id": session,
        "sub_queue": sub_queue,
        "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        "max_wait_time": 0.2,
    }
    if lane.kind == "topic":
        return client.get_subscription_receiver(lane.name, SUBSCRIPTION, **arguments)  # type: ignore[arg-type]
    return client.get_queue_receiver(lane.name, **arguments)  # type: ignore[arg-type]
