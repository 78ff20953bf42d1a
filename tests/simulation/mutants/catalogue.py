"""The planted bugs, by class. Each is one or more patches of source text, which must fit the code as it stands."""
# ruff: noqa: E501 - source text stands here as it stands there

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Patch:
    """Text of one file under `sbclient/`, which occurs there exactly once, and what replaces it."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    group: str
    patches: tuple[Patch, ...]


def _mutant(group: str, name: str, *patches: tuple[str, str, str]) -> Mutant:
    return Mutant(name, group, tuple(Patch(*patch) for patch in patches))


_LOSS: Final = "loss"
_STORAGE: Final = "storage"
_TRANSACTION: Final = "transaction"
_BACKLOG: Final = "backlog"
_FAILOVER: Final = "failover"
_LOCK: Final = "lock"
_IDENTITY: Final = "identity"
_ORDER: Final = "order"
_COUNT: Final = "count"
_SECRET: Final = "secret"
_PROGRESS: Final = "progress"
_LIMIT: Final = "limit"
_RIGHTS: Final = "rights"
_HOSTILE: Final = "hostile"
_TIME: Final = "time"

CERTAIN_GROUPS: Final = (_LOSS, _STORAGE, _TRANSACTION)
"""Of these every mutant is caught; of the others 95 % are."""

MUTANTS: Final[tuple[Mutant, ...]] = (
    # -- acknowledged before it is stored, or lost on the way ------------------------------------------------------
    _mutant(
        _LOSS,
        "the sender takes a timeout for an acknowledgement",
        (
            "client/outbox.py",
            "            if isinstance(error, ServiceBusError):\n                error.is_in_doubt = error.is_in_doubt or is_in_doubt\n",
            '            if type(error).__name__ == "OperationTimeoutError":\n'
            "                for item in group:\n"
            "                    item.result.done() or item.result.set_result(None)\n",
        ),
    ),
    _mutant(
        _LOSS,
        "the diversion takes any answer of a backlog queue for an acknowledgement",
        (
            "pairing/diversion.py",
            "                    if await self._note(queue, error, causes, deadline):\n                        is_last = False\n",
            "                    return queue\n",
        ),
        ("pairing/diversion.py", "done(self._unavailable({queue: error}))", "done(None)"),
    ),
    _mutant(
        _LOSS,
        "the diversion acknowledges what every backlog queue refused",
        ("pairing/diversion.py", "            raise self._unavailable(causes)\n", "            return ''\n"),
    ),
    _mutant(
        _LOSS,
        "a list that is diverted loses its last message",
        (
            "pairing/diversion.py",
            "sender.send(sealed, timeout_s",
            "sender.send(sealed[: max(1, len(sealed) - 1)], timeout_s",
        ),
        ("pairing/diversion.py", "link.start(sealed, ", "link.start(sealed[: max(1, len(sealed) - 1)], "),
    ),
    _mutant(
        _LOSS,
        "the syphon forgets a backlog queue",
        (
            "syphon/syphon.py",
            "for name in state.backlog_queues if name in chosen",
            "for name in state.backlog_queues[-1:] if name in chosen",
        ),
    ),
    _mutant(
        _LOSS,
        "the syphon completes before the primary has accepted",
        (
            "syphon/destination.py",
            "        try:\n            await self._forwarder.send(self._link, self.path, contents, SEND_S)\n",
            "        try:\n            await asyncio.gather(*(message.source.complete(message) for message in group))\n"
            "            await self._forwarder.send(self._link, self.path, contents, SEND_S)\n",
        ),
    ),
    _mutant(
        _LOSS,
        "the syphon completes what the primary has not answered",
        (
            "syphon/destination.py",
            "            return error\n        self.accepted_at",
            "            if not error.is_in_doubt:\n                return error\n        self.accepted_at",
        ),
    ),
    _mutant(
        _LOSS,
        "the ordered syphon completes before the primary has accepted",
        (
            "syphon/session_source.py",
            "            sender = await self._sender(path)\n",
            "            await self._complete(link, message)\n            sender = await self._sender(path)\n",
        ),
    ),
    _mutant(
        _LOSS,
        "what is put aside in the backlog is completed",
        (
            "syphon/queue_source.py",
            "await self._settle(settled.message, SettleMode.DEFER)",
            "await self._settle(settled.message, SettleMode.COMPLETE)",
        ),
    ),
    _mutant(
        _LOSS,
        "the syphon dead-letters what its destination cannot take now",
        (
            "syphon/forwarder.py",
            "isinstance(error, InvalidOperationError) else None",
            "isinstance(error, InvalidOperationError | ServiceBusInternalError) else None",
        ),
        (
            "syphon/forwarder.py",
            "MessageSizeExceededError, ServiceBusError\n",
            "MessageSizeExceededError, ServiceBusError, ServiceBusInternalError\n",
        ),
    ),
    _mutant(
        _LOSS,
        "the memory of accepted copies drops everything that comes again",
        (
            "syphon/queue_source.py",
            "return self._pair.accepted.has(self.queue, message)",
            "return self._pair.accepted.has(self.queue, message) or message.delivery_count > 0",
        ),
    ),
    # -- the store ------------------------------------------------------------------------------------------------
    _mutant(
        _STORAGE,
        "the broker acknowledges and does not store",
        (
            "broker/admission.py",
            "        else:\n            fragment.append(entry, now)\n",
            "        elif len(fragment) < 4:\n            fragment.append(entry, now)\n",
        ),
    ),
    _mutant(
        _STORAGE,
        "a message is lost when it moves off a fragment that is struck",
        (
            "broker/placement.py",
            "                self._next_indexes[call.front_end] = fragment.index + 1\n",
            "                self._next_indexes[call.front_end] = fragment.index + 1\n"
            "                if first_fault is not None:\n                    return deepcopy(fragment)\n",
        ),
        (
            "broker/placement.py",
            "from random import Random\n",
            "from copy import deepcopy\nfrom random import Random\n",
        ),
    ),
    _mutant(
        _STORAGE,
        "a list is stored without its last message",
        ("broker/admission.py", "in enumerate(entries):", "in enumerate(entries[: max(1, len(entries) - 1)]):"),
    ),
    _mutant(
        _STORAGE,
        "a dead letter is dropped",
        (
            "broker/fragment.py",
            "        (self.behind() if into is None else into).append(twin, twin.enqueued_at)\n",
            "        if reason != MAX_DELIVERIES_EXCEEDED:\n"
            "            (self.behind() if into is None else into).append(twin, twin.enqueued_at)\n",
        ),
    ),
    _mutant(
        _STORAGE,
        "what is abandoned is dropped",
        (
            "broker/fragment.py",
            "            self._return(entry, now, is_failed=True)\n        elif settlement.mode is SettleMode.DEFER",
            "            self.remove(entry)\n        elif settlement.mode is SettleMode.DEFER",
        ),
    ),
    _mutant(
        _STORAGE,
        "a scheduled message vanishes when its time comes",
        (
            "broker/storage.py",
            "        entry.was_scheduled = True\n        self._store(entry, at)\n",
            "        entry.was_scheduled = True\n",
        ),
    ),
    _mutant(
        _STORAGE,
        "a deferred message forgets that it is",
        ("broker/fragment.py", "            entry.state = _DEFERRED\n", "            pass\n"),
    ),
    _mutant(
        _STORAGE,
        "a cancelled schedule stays",
        ("broker/namespace.py", "            fragment.cancel(number)\n", "            pass\n"),
    ),
    # -- transactions ---------------------------------------------------------------------------------------------
    _mutant(
        _TRANSACTION,
        "half a commit",
        (
            "broker/transactions.py",
            "        for step in self._steps:\n            step.apply(now)\n",
            "        for step in self._steps[: max(1, len(self._steps) - 1)]:\n            step.apply(now)\n",
        ),
    ),
    _mutant(
        _TRANSACTION,
        "a rollback commits",
        (
            "broker/namespace.py",
            "        transaction.rollback()\n        self._gate.check_namespace(call)\n",
            "        transaction.commit(call.now)\n        self._gate.check_namespace(call)\n",
        ),
    ),
    _mutant(
        _TRANSACTION,
        "sends of a transaction are stored at once",
        (
            "broker/namespace.py",
            "        if transaction is None:\n            fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)\n"
            "            store(fragment, transfer.entries, None, call.now",
            "        if True:\n            fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)\n"
            "            store(fragment, transfer.entries, None, call.now",
        ),
    ),
    _mutant(
        _TRANSACTION,
        "a failed commit is reported as done",
        (
            "client/transaction.py",
            "        except BaseException:\n            self._undone()\n            raise\n",
            "        except ServiceBusError:\n            self._undone()\n",
        ),
    ),
    _mutant(
        _TRANSACTION,
        "a transaction goes to the backlog",
        (
            "client/sender.py",
            "        if transaction is not None:\n            sending",
            "        if transaction is not None and not self._route.is_failed_over:\n            sending",
        ),
    ),
    _mutant(
        _TRANSACTION,
        "what was settled in a transaction comes back after its commit",
        (
            "broker/namespace.py",
            "        apply=lambda now: fragment.settle(token, settlement, now),",
            "        apply=lambda now: fragment.release(token, now),",
        ),
    ),
    # -- the way through the backlog ------------------------------------------------------------------------------
    _mutant(
        _BACKLOG,
        "the session is lost in the backlog",
        ("rules/envelope.py", "        properties[SESSION_ID] = message.session_id\n", "        pass\n"),
    ),
    _mutant(
        _BACKLOG,
        "session and partition key are swapped",
        (
            "rules/envelope.py",
            "    session_id, partition_key = _short_text(sealed, SESSION_ID), _short_text(sealed, PARTITION_KEY)\n",
            "    partition_key, session_id = _short_text(sealed, SESSION_ID), _short_text(sealed, PARTITION_KEY)\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the partition key is lost in the backlog",
        (
            "rules/envelope.py",
            "    if received.session_id is None and partition_key is None:\n        partition_key = received.partition_key\n",
            "",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the schedule is lost in the backlog",
        (
            "rules/envelope.py",
            "        properties[SCHEDULED_ENQUEUE_TIME] = message.scheduled_enqueue_time_utc\n",
            "        pass\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the life begins anew in the primary",
        ("rules/envelope.py", 'if time_to_live is not None and time_to_live_mode == "remaining":', "if False:"),
    ),
    _mutant(
        _BACKLOG,
        "the wait for the schedule counts as life",
        (
            "rules/envelope.py",
            "max(received.enqueued_time_utc, schedule or _EPOCH)\n",
            "received.enqueued_time_utc\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the life is lost in the backlog",
        ("rules/envelope.py", "            time_to_live=time_to_live,\n", "            time_to_live=None,\n"),
    ),
    _mutant(
        _BACKLOG,
        "a property of the application is overwritten by an alias",
        (
            "rules/envelope.py",
            "properties[USER_PREFIX + name if _is_reserved(name) else name] = value",
            "properties.setdefault(name, value)",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the aliases are left in forwarded messages",
        ("rules/envelope.py", "elif name not in _ALIASES and name != PARTITION_KEY:", "else:"),
    ),
    _mutant(
        _BACKLOG,
        "messages of different sessions go home in one transfer",
        (
            "syphon/destination.py",
            "            key = ordering_key(message.unsealed.message)\n",
            "            key = None\n",
        ),
        ("syphon/destination.py", "        if len(group) > 1:\n", "        if False:\n"),
    ),
    _mutant(
        _BACKLOG,
        "a backlog queue is taken for a destination",
        ("rules/envelope.py", "    if is_backlog_path(destination):\n", "    if False:\n"),
    ),
    _mutant(
        _BACKLOG,
        "parked messages that a scan finds are not taken note of",
        (
            "syphon/destination.py",
            "            known[number] = None\n            self._arrived.set()\n        return True\n",
            "            pass\n        return True\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "a run until empty ends while something is left",
        (
            "syphon/queue_drain.py",
            "if not scan.active and not source.in_flight and is_stuck and (waiting or not scan.forgotten):",
            "if not source.in_flight:",
        ),
    ),
    _mutant(
        _BACKLOG,
        "the syphon sends again what the primary has accepted",
        ("syphon/queue_source.py", "return self._pair.accepted.has(self.queue, message)", "return False"),
    ),
    # -- failing over ---------------------------------------------------------------------------------------------
    _mutant(
        _FAILOVER,
        "a busy server is an outage",
        (
            "errors.py",
            '    is_transient = True\n    condition = "com.microsoft:server-busy"\n',
            '    is_transient = True\n    is_outage = True\n    condition = "com.microsoft:server-busy"\n',
        ),
    ),
    _mutant(
        _FAILOVER,
        "a missing right is an outage",
        (
            "errors.py",
            '    condition = "amqp:unauthorized-access"\n',
            '    is_outage = True\n    condition = "amqp:unauthorized-access"\n',
        ),
    ),
    _mutant(
        _FAILOVER,
        "a success does not clear the deadline",
        (
            "rules/failover.py",
            "        if after is not FailoverState.SUSPECT:\n            self._deadline_at = None\n",
            "        if after is FailoverState.FAILED_OVER:\n            self._deadline_at = None\n",
        ),
        (
            "rules/failover.py",
            "            return self._apply(FailoverEvent.DEADLINE_PASSED, now)\n",
            "            self.state = FailoverState.SUSPECT\n"
            "            return self._apply(FailoverEvent.DEADLINE_PASSED, now)\n",
        ),
    ),
    _mutant(
        _FAILOVER,
        "the interval is cut in half",
        ("rules/failover.py", "now + self._failover_interval_s\n", "now + self._failover_interval_s / 2\n"),
    ),
    _mutant(
        _FAILOVER,
        "one accepted ping is always enough",
        ("rules/failover.py", "if self._pings_accepted >= self._pings_to_recover:", "if self._pings_accepted >= 1:"),
    ),
    _mutant(
        _FAILOVER,
        "a refused ping brings the entity back",
        (
            "pairing/pinger.py",
            "                error=error,\n            )\n            return error\n",
            "                error=error,\n            )\n            return None\n",
        ),
    ),
    _mutant(
        _FAILOVER,
        "pings carry no key",
        ("rules/failover.py", "            self.ping_keys = keys\n", "            pass\n"),
    ),
    _mutant(
        _FAILOVER,
        "sends go on to the primary while it is failed over",
        (
            "client/route.py",
            "(not must_wait and not self._entity.is_failed_over):\n",
            "(not must_wait and (not self._entity.is_failed_over or len(transfer) > 1)):\n",
        ),
    ),
    _mutant(
        _FAILOVER,
        "an outage keeps everybody from filling a batch",
        (
            "client/route.py",
            "                if not self._entity.failed(error, PingKeys()):\n                    raise\n        return self._pair",
            "                raise\n        return self._pair",
        ),
    ),
    _mutant(
        _FAILOVER,
        "all entities share one state",
        (
            "pairing/state.py",
            "        key = canonical(path)\n        entity = self._entities.get(key)\n",
            '        key = "*"\n        entity = self._entities.get(key)\n',
        ),
    ),
    _mutant(
        _FAILOVER,
        "no client pings",
        (
            "rules/failover.py",
            "            self._ping_at = now if after is FailoverState.FAILED_OVER else None\n",
            "            self._ping_at = None\n",
        ),
    ),
    _mutant(
        _FAILOVER,
        "the broker delivers pings",
        (
            "broker/admission.py",
            "if is_ping(entry.content) or fragment.is_duplicate(identity, now):",
            "if fragment.is_duplicate(identity, now):",
        ),
    ),
    _mutant(
        _FAILOVER,
        "the diversion reports a doubt as a refusal",
        (
            "pairing/diversion.py",
            "        error.is_in_doubt = is_in_doubt\n",
            "        error.is_in_doubt = False\n",
        ),
        (
            "client/route.py",
            "            error.is_in_doubt = error.is_in_doubt or is_in_doubt\n",
            "            pass\n",
        ),
    ),
    _mutant(
        _FAILOVER,
        "a refusal of a link that was opened anew settles what the stale one left in doubt",
        (
            "client/route.py",
            "                error.is_in_doubt = error.is_in_doubt or stale.is_in_doubt\n",
            "                pass\n",
        ),
    ),
    # -- locks ----------------------------------------------------------------------------------------------------
    _mutant(
        _LOCK,
        "a stale lock is accepted",
        (
            "broker/fragment.py",
            "        self.advance(now)\n        if lock is not None:\n            self.check_session(lock)\n        entry = self._locks.get(token)\n",
            "        if lock is not None:\n            self.check_session(lock)\n        entry = self._locks.get(token)\n",
        ),
        (
            "broker/request_gate.py",
            "        touch(entity, call.now)\n        return entity, target\n",
            "        return entity, target\n",
        ),
    ),
    _mutant(
        _LOCK,
        "a renewal moves nothing",
        (
            "broker/fragment.py",
            "        return self._locks.move(entry, now + self.policy.lock_duration_s)\n",
            "        return now + self.policy.lock_duration_s\n",
        ),
    ),
    _mutant(
        _LOCK,
        "a message is given to two receivers",
        (
            "broker/fragment.py",
            "        else:\n            self._fresh.popleft()\n",
            "        elif len(self._fresh) % 3 or self._entries.get(self._fresh[0]) is None:\n            self._fresh.popleft()\n",
        ),
    ),
    _mutant(
        _LOCK,
        "a session is given to two receivers",
        (
            "broker/session.py",
            "        if session.token:\n            return False\n",
            "        if session.token and not session.message_count:\n            return False\n",
        ),
        (
            "broker/session.py",
            "        self._available.pop(session_id, None)\n        return True\n",
            "        return True\n",
        ),
    ),
    _mutant(
        _LOCK,
        "the state of a session is lost when it is empty",
        (
            "broker/session.py",
            "        if session.is_empty and not session.token:\n",
            "        if not session.message_count and not session.token:\n",
        ),
    ),
    _mutant(
        _LOCK,
        "a lock ends too early",
        (
            "broker/locks.py",
            "            self.ends.set(entry.token, until)\n",
            "            self.ends.set(entry.token, until - 1.5)\n",
        ),
    ),
    # -- identity and duplicates ----------------------------------------------------------------------------------
    _mutant(
        _IDENTITY,
        "a message gets a new id at each try",
        (
            "client/outgoing.py",
            "        copy = message.copy()\n",
            "        copy = message.copy(message_id=new_id())\n",
        ),
    ),
    _mutant(
        _IDENTITY,
        "duplicates are not detected",
        (
            "broker/storage.py",
            "            return True\n        self.seen.remember(identity, now)\n",
            "            return False\n        self.seen.remember(identity, now)\n",
        ),
    ),
    _mutant(
        _IDENTITY,
        "duplicates with a key are not detected",
        (
            "broker/deduplication.py",
            "    return message_id if key is None else (message_id, key)\n",
            "    return message_id if key is None else None\n",
        ),
    ),
    _mutant(
        _IDENTITY,
        "a send that succeeded is repeated",
        (
            "client/primary_link.py",
            "        await self._link.send(messages_of(transfer), timeout_s=left_s, transaction=transaction)\n",
            "        messages = messages_of(transfer)\n"
            "        await self._link.send(messages, timeout_s=left_s, transaction=transaction)\n"
            "        if len(messages) > 2 and transaction is None:\n"
            "            await self._link.send(messages, timeout_s=left_s)\n",
        ),
    ),
    _mutant(
        _IDENTITY,
        "a diversion goes to two queues",
        (
            "pairing/diversion.py",
            "                    self._accepted(queue, len(sealed))\n",
            "                    await link.link.send(sealed, timeout_s=remaining_s)\n"
            "                    self._accepted(queue, len(sealed))\n",
        ),
    ),
    _mutant(
        _IDENTITY,
        "a key moves to another fragment when its own is struck",
        (
            "broker/placement.py",
            "            fragment = self.reached(call, 0 if key is None else self.fragment_for(key).index)\n",
            "            home = 0 if key is None else self.fragment_for(key).index\n"
            "            if self._faults.stopping(call, self._path, home) is not None:\n"
            "                home = (home + 1) % len(self._fragments)\n"
            "            fragment = self.reached(call, home)\n",
        ),
    ),
    # -- order and time -------------------------------------------------------------------------------------------
    _mutant(
        _ORDER,
        "sessions do not queue up behind what was diverted",
        (
            "pairing/session_order.py",
            "        if not is_clear:\n            self._known.diverted(session_id)\n            return True\n",
            "        if not is_clear:\n            return False\n",
        ),
    ),
    _mutant(
        _ORDER,
        "sessions that are listed in the backlog count as clear",
        (
            "rules/known_sessions.py",
            "        return native_session_id not in self._native and not",
            "        return not",
        ),
    ),
    _mutant(
        _ORDER,
        "the ordered syphon brings a session home backwards",
        (
            "syphon/session_source.py",
            "                for message in messages:\n                    await self._wait_for_rate(link, message)\n",
            "                for message in reversed(messages):\n                    await self._wait_for_rate(link, message)\n",
        ),
    ),
    _mutant(
        _ORDER,
        "what comes back goes to the end",
        (
            "broker/fragment.py",
            "        if is_fresh:\n            self._fresh.append(entry.number)\n",
            "        if is_fresh or len(self._fresh) > 2:\n            self._fresh.appendleft(entry.number)\n",
        ),
    ),
    _mutant(
        _ORDER,
        "a message is shown before its time",
        (
            "broker/admission.py",
            "if at is not None and at.timestamp() > now:",
            "if at is not None and at.timestamp() > now + 10:",
        ),
    ),
    _mutant(
        _ORDER,
        "what has expired is still handed out",
        ("broker/storage.py", "entry.enqueued_at + ttl_s)\n", "entry.enqueued_at + ttl_s + 30)\n"),
    ),
    _mutant(
        _ORDER,
        "a message expires too early",
        ("broker/storage.py", "entry.enqueued_at + ttl_s)\n", "entry.enqueued_at + ttl_s / 2)\n"),
    ),
    # -- counts ---------------------------------------------------------------------------------------------------
    _mutant(
        _COUNT,
        "scheduled messages are not counted down",
        ("broker/storage.py", "            self.scheduled_count -= 1\n", "            pass\n"),
    ),
    _mutant(
        _COUNT,
        "bytes are not given back",
        ("broker/storage.py", "        self.usage.size_bytes -= entry.size_bytes\n", "        pass\n"),
    ),
    _mutant(
        _COUNT,
        "an entity is reported as available while fragments are down",
        (
            "broker/faults.py",
            "            if fault.fragments is not None and fault.kind in lost and not fault.operations\n",
            "            if fault.fragments is not None and fault.kind in lost and fault.operations\n",
        ),
    ),
    _mutant(
        _COUNT,
        "an abandoned delivery is not counted",
        (
            "broker/fragment.py",
            "            self._return(entry, now, is_failed=True)\n        elif settlement.mode is SettleMode.DEFER",
            "            self._return(entry, now, is_failed=False)\n        elif settlement.mode is SettleMode.DEFER",
        ),
    ),
    _mutant(
        _COUNT,
        "a message is dead-lettered one delivery too early",
        (
            "broker/fragment.py",
            "entry.delivery_count >= self.policy.max_delivery_count:",
            "entry.delivery_count >= self.policy.max_delivery_count - 1:",
        ),
    ),
    _mutant(
        _COUNT,
        "the client counts transfers for messages",
        (
            "pairing/diversion.py",
            "        self._entity.diverted += count\n",
            "        self._entity.diverted += 1\n",
        ),
    ),
    # -- limits, secrets, progress --------------------------------------------------------------------------------
    _mutant(
        _LIMIT,
        "one byte too much is let through",
        (
            "client/primary_link.py",
            "if largest > limits.max_message_size_bytes:",
            "if largest > limits.max_message_size_bytes + 1:",
        ),
        (
            "broker/admission.py",
            "        if size_bytes > policy.max_message_size_bytes:\n",
            "        if size_bytes > policy.max_message_size_bytes + 1:\n",
        ),
    ),
    _mutant(
        _LIMIT,
        "one byte too little is let through",
        (
            "client/primary_link.py",
            "if largest > limits.max_message_size_bytes:",
            "if largest >= limits.max_message_size_bytes:",
        ),
    ),
    _mutant(
        _SECRET,
        "an error tells the body",
        (
            "client/primary_link.py",
            'raise self._too_large("a message", largest, ',
            "raise self._too_large(str(transfer[0].message), largest, ",
        ),
    ),
    _mutant(
        _SECRET,
        "a log event tells the body",
        (
            "syphon/forwarder.py",
            "                reason=reason,\n                queue=queue,\n            )\n",
            "                reason=reason,\n                queue=str(message),\n            )\n",
        ),
    ),
    _mutant(
        _SECRET,
        "the repr of a message tells its body",
        (
            "message.py",
            "        return f\"{name}({', '.join(fields)})\"\n",
            "        return f\"{name}({self}, {', '.join(fields)})\"\n",
        ),
    ),
    _mutant(
        _PROGRESS,
        "the pinger never rests",
        (
            "rules/failover.py",
            "        self._ping_at = None\n        return self.generation\n",
            "        return self.generation\n",
        ),
    ),
    _mutant(
        _PROGRESS,
        "a wait too short to pass never ends",
        ("hosting/host.py", "LEAST_WAIT_S: Final = 1e-6", "LEAST_WAIT_S: Final = 0.0"),
    ),
    _mutant(
        _PROGRESS,
        "a destination that refused is never tried again",
        ("rules/refusal.py", "LONGEST_PAUSE_S: Final = 60.0", "LONGEST_PAUSE_S: Final = 1e9"),
        (
            "rules/refusal.py",
            "first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)",
            "first_s=LONGEST_PAUSE_S, longest_s=LONGEST_PAUSE_S)",
        ),
    ),
    # -- found by the simulation once, and fixed ------------------------------------------------------------------
    _mutant(
        _PROGRESS,
        "a look through fragments breaks off when one of them is lost",
        (
            "broker/entity.py",
            "            self._order = self._order[at:]  # an unreachable one may be back at the next call\n",
            "            self._order = [index for index in self._order[at:] if index in reachable]\n",
        ),
        ("broker/entity.py", "elif self._last_number >> COUNTER_BITS not in self._order or", "elif not self._order or"),
    ),
    _mutant(
        _LIMIT,
        "only messages that travel alone are measured",
        (
            "client/primary_link.py",
            "if largest > limits.max_message_size_bytes:",
            "if len(transfer) == 1 and largest > limits.max_message_size_bytes:",
        ),
    ),
    _mutant(
        _FAILOVER,
        "a later refusal hides that an earlier try was in doubt",
        (
            "retry.py",
            "            self._is_in_doubt = self.last.is_in_doubt = self._is_in_doubt or error.is_in_doubt\n",
            "            pass\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "a life does not shrink while the ordered syphon waits for a busy destination",
        ("syphon/session_source.py", "content = unsealed.message_at(self._clock.now())", "content = unsealed.message"),
    ),
    _mutant(
        _BACKLOG,
        "a session with a short lock is not kept while its message is on its way",
        (
            "syphon/session_source.py",
            "                        while await self._clock.wait([transfer], self._check_in_s(link)):\n"
            "                            await self._renew_lock(link)\n                    except",
            "                        await asyncio.shield(transfer)\n                    except",
        ),
        (
            "syphon/session_source.py",
            "        await self._renew_lock(link)\n        try:\n            options",
            "        try:\n            options",
        ),
    ),
    _mutant(
        _LIMIT,
        "a front end gives out what has expired there",
        (
            "broker/fragment.py",
            "        if entry.expires_at <= now:\n            self._return(entry, now, is_failed=False)\n            return None\n        if delete:",
            "        if delete:",
        ),
    ),
    _mutant(
        _FAILOVER,
        "a secondary that is silent takes all the time there is, and the primary is not asked",
        (
            "pairing/session_order.py",
            "_is_clear(session_id, min(ASK_S, max((deadline - now) / 4, 0.001)))",
            "_is_clear(session_id, min(ASK_S, max(deadline - now, 0.001)))",
        ),
        (
            "pairing/session_order.py",
            "timeout_s = min(ASK_S, max((deadline - now) / 4, 0.001))",
            "timeout_s = min(ASK_S, max(deadline - now, 0.001))",
        ),
    ),
    _mutant(
        _FAILOVER,
        "a refusal of one message settles what the shared transfer before it left in doubt",
        (
            "client/outbox.py",
            "await self._send_group([item], is_in_doubt=error.is_in_doubt)",
            "await self._send_group([item])",
        ),
    ),
    _mutant(
        _BACKLOG,
        "a backlog queue that failed once is forgotten",
        (
            "rules/backlog.py",
            "        usable = [queue for queue in self._queues if queue not in tried and not self._quarantine.is_in(queue, now)]\n",
            "        self._queues = [queue for queue in self._queues if not self._quarantine.is_in(queue, now)]\n        usable = [queue for queue in self._queues if queue not in tried]\n        if not usable:\n            return None\n",
        ),
    ),
    _mutant(
        _BACKLOG,
        "a backlog queue that failed is not left out",
        (
            "rules/backlog.py",
            "        return term is not None and now < term.until_at\n",
            "        return False\n",
        ),
    ),
    # -- spans, and what happens a second time ------------------------------------------------------------------------
    _mutant(
        _TIME,
        "a later outage moves the deadline",
        (
            "rules/failover.py",
            "        if self._deadline_at is None:\n            self._deadline_at = now + self._failover_interval_s\n",
            "        self._deadline_at = now + self._failover_interval_s\n",
        ),
    ),
    _mutant(
        _TIME,
        "a quarantine lasts ten times as long",
        ("rules/backlog.py", "QUARANTINE_S: Final = 30.0", "QUARANTINE_S: Final = 300.0"),
        ("rules/backlog.py", "QUARANTINE_MAX_S: Final = 300.0", "QUARANTINE_MAX_S: Final = 3000.0"),
    ),
    _mutant(
        _TIME,
        "a grace lasts three times as long",
        ("rules/refusal.py", "self._missing_s >= grace_s", "self._missing_s >= 3 * grace_s"),
    ),
    _mutant(
        _TIME,
        "an entity that was gone, and back, and is gone again was missing all the time",
        (
            "syphon/destination.py",
            "        failures, self.refusal = self.failures, None\n",
            "        failures = self.failures\n        if failures:\n            self._earlier = self.refusal\n        self.refusal = None\n",
        ),
        (
            "syphon/destination.py",
            "refusal = self.refusal or Refusal()",
            'refusal = self.refusal or getattr(self, "_earlier", None) or Refusal()',
        ),
    ),
    _mutant(
        _TIME,
        "a duplicate renews its window",
        (
            "broker/storage.py",
            "self.policy.duplicate_window_s):\n            return True\n",
            "self.policy.duplicate_window_s):\n            self.seen.remember(identity, now)\n            return True\n",
        ),
    ),
    _mutant(
        _TIME,
        "a syphon that is stopped gives messages back for as long as it takes",
        ("syphon/queue_source.py", "RELEASE_S: Final = 5.0", "RELEASE_S: Final = 500.0"),
    ),
    _mutant(
        _TIME,
        "a rate limit forgets the transfers that wait for it",
        (
            "rate_limit.py",
            "self._free_at = max(self._clock.monotonic(), self._free_at) + delay_s",
            "self._free_at = self._clock.monotonic() + delay_s",
        ),
    ),
    _mutant(
        _TIME,
        "a rule without an action hides the matching rules behind it",
        ("broker/topic.py", "            if is_plain_due or rule.has_action:\n", "            if is_plain_due:\n"),
    ),
    _mutant(
        _TIME,
        "a syphon asks again and again for a parked message that another one has taken",
        (
            "syphon/destination.py",
            "            for number in numbers:\n                known.pop(number, None)\n            return\n",
            "            for message in messages:\n                known.pop(message.sequence_number, None)\n            return\n",
        ),
    ),
    _mutant(
        _TIME,
        "a lock that expires while its renewal hangs is not lost",
        (
            "syphon/queue_source.py",
            "if not one.is_lost and one.lock_s > 0 and self._lock_left_s(one.message) <= 0:",
            "if not one.is_lost and one.lock_s > 0 and self._lock_left_s(one.message) <= -1000:",
        ),
    ),
    _mutant(
        _TIME,
        "a topic keeps the bytes of a subscription that was deleted",
        ("broker/namespace.py", "                fragment.detach()\n", "                pass\n"),
    ),
    # -- rights and strangers ---------------------------------------------------------------------------------------
    _mutant(
        _RIGHTS,
        "a token for q1 grants q10",
        ("emulator/sas.py", 'inner.startswith(outer + "/")', "inner.startswith(outer)"),
    ),
    _mutant(
        _RIGHTS,
        "a token counts beyond its time",
        (
            "emulator/sas.py",
            "                    if expires_at <= now:\n",
            "                    if expires_at <= now - 3600:\n",
        ),
    ),
    _mutant(
        _RIGHTS,
        "any signature proves a token",
        (
            "emulator/sas.py",
            '                if hmac.compare_digest(signature_of(fields["sr"], fields["se"], key), signature):\n',
            "                if signature:\n",
        ),
    ),
    _mutant(
        _RIGHTS,
        "a key of a name counts for every key of that name",
        (
            "emulator/sas.py",
            "        for rule in (rule for rule in (*(entity_rules or ()), *self._rules) if rule.key_name == key_name):\n",
            "        for rule in (*(entity_rules or ()), *self._rules) if scope else ():\n            if rule.key_name == key_name and entity_rules and rule in entity_rules:\n                return Grant(scope, _rights(rule), expires_at)\n",
        ),
    ),
    _mutant(
        _RIGHTS,
        "every right includes every other",
        (
            "emulator/sas.py",
            "    return ALL_RIGHTS if AccessRights.MANAGE in rule.rights else frozenset(rule.rights)\n",
            "    return ALL_RIGHTS\n",
        ),
    ),
    _mutant(
        _RIGHTS,
        "who has any token may attach",
        (
            "emulator/amqp/peer.py",
            "        if right not in self.rights(path):\n",
            "        if not self.grants.has_begun:\n",
        ),
    ),
    _mutant(
        _SECRET,
        "the error of a refused token contains it",
        (
            "emulator/sas.py",
            'raise _refuse(f"is not signed with a key named',
            'raise _refuse(f"{text} is not signed with a key named',
        ),
    ),
)
