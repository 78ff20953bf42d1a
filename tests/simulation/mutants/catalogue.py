"""The planted bugs, by class. Each changes one or more functions, which must exist as the entry describes them."""
# ruff: noqa: E501 - long statements

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.change import Change, Mutant, mutants_of

MUTANTS: Final[tuple[Mutant, ...]] = mutants_of(
    {
        "loss": {
            "the sender takes a timeout for an acknowledgement": Change(
                "client.outbox:Outbox._answered",
                "_fail(group, error)",
                """
                if type(error).__name__ == 'OperationTimeoutError':
                    for call in group:
                        call.result.done() or call.result.set_result(None)
                _fail(group, error)
            """,
            ),
            "the diversion takes any answer of a backlog queue for an acknowledgement": Change(
                "pairing.diversion:Diversion._send_to",
                """
                if await self._wait_if_busy(..., ..., ..., ..., **...):
                    is_last = False
                else:
                    self._note(tried.queue, error, causes)
            """,
                "return tried.queue",
            ),
            "the diversion acknowledges what every backlog queue refused": Change(
                "pairing.diversion:Diversion._send_to", "raise self._unavailable(causes)", "return ''"
            ),
            "a list that is diverted loses its last message": Change(
                "pairing.backlog_links:BacklogLinks.send",
                "link.sender.send(batch, **...)",
                "link.sender.send(EncodedBatch(list(batch.messages)[: max(1, len(batch) - 1)]), **...)",
            ),
            "the syphon forgets a backlog queue": Change(
                "syphon.syphon:Syphon.__init__",
                "[name for name in state.backlog_queues if name in chosen]",
                "[name for name in state.backlog_queues[-1:] if name in chosen]",
            ),
            "the syphon completes before the primary has accepted": Change(
                "syphon.destination:Destination._transfer",
                "await tracing.carrying(..., ..., ..., ...)",
                """
                await complete(group)
                await tracing.carrying(..., ..., ..., ...)
            """,
            ),
            "the syphon completes what the primary has not answered": Change(
                "syphon.destination:Destination._transfer",
                "return error.with_traceback(None)",
                """
                if not error.is_in_doubt:
                    return error
            """,
            ),
            "the ordered syphon completes before the primary has accepted": Change(
                "syphon.session_source:SessionSource._forward",
                "await self._destinations.offer([one])",
                """
                await one.complete()
                await self._destinations.offer([one])
            """,
            ),
            "what is put aside in the backlog is completed": Change(
                "syphon.queue_source:QueueSource.park", "SettleMode.DEFER", "SettleMode.COMPLETE"
            ),
            "the syphon dead-letters what its destination cannot take now": (
                Change(
                    "syphon.destination:_rejection_reason",
                    "InvalidOperationError",
                    "InvalidOperationError | ServiceBusInternalError",
                ),
                Change(
                    "syphon.destination",
                    "from __future__ import annotations",
                    """
                from __future__ import annotations
                from sbclient.errors import ServiceBusInternalError
            """,
                ),
            ),
            "the memory of accepted copies drops everything that comes again": Change(
                "syphon.source:Source.take",
                "self.pair.accepted.has(self.queue, message)",
                "self.pair.accepted.has(self.queue, message) or message.delivery_count > 0",
            ),
            "a receiver that deletes asks both namespaces at once": Change(
                "client.both_links:BothLinks._receive", "running and self._is_deleting", "False"
            ),
            "messages are redirected to a topic that drops them": Change(
                "pairing.provisioning:keeping_entity", "if not runtime.subscription_count: ...", "pass"
            ),
            "what the secondary rejects is dead-lettered": Change(
                "syphon.destination:Destination._may_reject", "not self._is_elsewhere or len(group) > 1", "True"
            ),
            "a task of Spark counts rows in doubt as sent": Change(
                "sbclient_spark.write.partition_writer:PartitionWriter._send",
                "is_in_doubt = is_in_doubt or error.is_in_doubt",
                """
                is_in_doubt = is_in_doubt or error.is_in_doubt
                if is_in_doubt:
                    self._acknowledged(rows, size, began_at)
                    return True
            """,
            ),
        },
        "storage": {
            "the broker acknowledges and does not store": Change(
                "broker.admission:put",
                "fragment.put(entry, copies)",
                """
                if len(fragment) < 4:
                    fragment.put(entry, copies)
            """,
            ),
            "a message is lost when it moves off a fragment that is struck": (
                Change(
                    "broker.placement:Placement._next",
                    "self._next_indexes[call.front_end] = fragment.index + 1",
                    """
                self._next_indexes[call.front_end] = fragment.index + 1
                if first_fault is not None:
                    return deepcopy(fragment)
            """,
                ),
                Change(
                    "broker.placement",
                    "from __future__ import annotations",
                    """
                from __future__ import annotations
                from copy import deepcopy
            """,
                ),
            ),
            "a list is stored without its last message": Change(
                "broker.admission:arrivals", "enumerate(entries)", "enumerate(entries[:max(1, len(entries) - 1)])"
            ),
            "a dead letter is dropped": Change(
                "broker.fragment:Fragment.dead_letter",
                "into.append(twin, twin.enqueued_at)",
                """
                if reason != MAX_DELIVERIES_EXCEEDED:
                    into.append(twin, twin.enqueued_at)
            """,
            ),
            "what is abandoned is dropped": Change(
                "broker.fragment:Fragment.settle", "self._return(entry, now, is_failed=True)", "self.remove(entry)"
            ),
            "a scheduled message vanishes when its time comes": Change(
                "broker.storage:Storage._activate", "self._store(entry, copies)", ""
            ),
            "a deferred message forgets that it is": Change(
                "broker.fragment:Fragment.settle", "entry.state = _DEFERRED", ""
            ),
            "a cancelled schedule stays": Change(
                "broker.namespace:Namespace.cancel_scheduled", "fragment.cancel(number)", ""
            ),
        },
        "transaction": {
            "half a commit": Change(
                "broker.transactions:Transaction.commit",
                """
                for step in self._steps:
                    if not step.changes_rules:
                        step.apply(now)
            """,
                """
                for step in self._steps[:max(1, len(self._steps) - 1)]:
                    step.apply(now)
            """,
            ),
            "a rollback commits": Change(
                "broker.namespace:Namespace.rollback", "transaction.rollback()", "transaction.commit(call.now)"
            ),
            "sends of a transaction are stored at once": Change(
                "broker.namespace:Namespace._send", "transaction is None", "True"
            ),
            "a failed commit is reported as done": Change(
                "client.transaction:Transaction.commit",
                """
                try:
                    ...
                except BaseException:
                    self._undone()
                    raise
            """,
                """
                try:
                    ...
                except ServiceBusError:
                    self._undone()
            """,
            ),
            "a transaction goes to the backlog": Change(
                "client.sender:ServiceBusSender.send_messages",
                "transaction is not None",
                "transaction is not None and (not self._route.is_failed_over)",
            ),
            "what was settled in a transaction comes back after its commit": Change(
                "broker.transactions:Transaction.add_settlements",
                "partial(fragment.settle, token, settlement)",
                "partial(fragment.release, token)",
            ),
        },
        "backlog": {
            "the session is lost in the backlog": Change(
                "rules.envelope:seal", "aliases[SESSION_ID] = message.session_id", ""
            ),
            "session and partition key are swapped": Change(
                "rules.envelope:unseal",
                "lifetime = None",
                """
                session_id, partition_key = partition_key, session_id
                lifetime = None
            """,
            ),
            "the partition key is lost in the backlog": Change(
                "rules.envelope:unseal",
                """
                if sealed.session_id is None and partition_key is None:
                    partition_key = session_id if is_original and sealed.partition_key is None else sealed.partition_key
            """,
                "",
            ),
            "the schedule is lost in the backlog": Change(
                "rules.envelope:seal", "aliases[SCHEDULED_ENQUEUE_TIME] = message.scheduled_enqueue_time_utc", ""
            ),
            "the life begins anew in the primary": Change(
                "rules.envelope:unseal", "time_to_live is not None and time_to_live_mode == 'remaining'", "False"
            ),
            "the wait for the schedule counts as life": Change(
                "rules.envelope:unseal",
                "max(received.enqueued_time_utc, schedule or _EPOCH)",
                "received.enqueued_time_utc",
            ),
            "the life is lost in the backlog": Change(
                "rules.envelope:unseal",
                "sealed.rewritten(time_to_live=time_to_live, **...)",
                "sealed.rewritten(time_to_live=None, **...)",
            ),
            "a session is left out of a transfer to the backlog": Change(
                "rules.envelope:seal_all",
                "message.session_id is not None or not message.properties_end",
                "not message.properties_end",
            ),
            "a property of the application is overwritten by an alias": Change(
                "rules.envelope:_kept_properties",
                "encode_string(USER_PREFIX + name) + entry[skip_value(entry, 0) :] if _is_reserved(name) else entry",
                "b'' if _is_reserved(name) else entry",
            ),
            "the aliases are left in forwarded messages": Change(
                "rules.envelope:_parts",
                "aliases[name] = decode_at(entry, skip_value(entry, 0), **...)[0]",
                """
                aliases[name] = decode_at(entry, skip_value(entry, 0), typed=name == TIME_TO_LIVE)[0]
                restored.append(entry)
            """,
            ),
            "messages of different sessions go home in one transfer": (
                Change("syphon.destination:Destination._next_groups", "message.key", "None"),
                Change("syphon.destination:Destination._reject", "len(group) > 1", "False"),
            ),
            "a backlog queue is taken for a destination": Change(
                "rules.envelope:_checked_destination", "is_backlog_path(destination)", "False"
            ),
            "parked messages that a scan finds are not taken note of": Change(
                "syphon.destination:Destination.remember_parked",
                """
                known[number] = None
                self._arrived.set()
            """,
                "",
            ),
            "a run until empty ends while something is left": Change(
                "syphon.queue_source:QueueSource._is_finished",
                "not scan.active and (not self.in_flight) and is_stuck and is_current",
                "not self.in_flight",
            ),
            "parked messages of several partitions are asked for at once": Change(
                "syphon.queue_source:QueueSource.receive_parked", "by_partition(numbers)", "[list(numbers)]"
            ),
            "the syphon sends again what the primary has accepted": (
                Change("syphon.source:Source.take", "self.pair.accepted.has(self.queue, message)", "False"),
                Change("syphon.destination:Destination._contents", "message.is_accepted", "False"),
            ),
            "a busy backlog queue is waited for and never withdrawn": Change(
                "pairing.diversion:Diversion._wait_if_busy", "queue in busy and (not is_only)", "False"
            ),
            "each failure of a withdrawn backlog queue is reported": Change(
                "rules.backlog:Quarantine.failed", "return term is None", "return True"
            ),
            "a life does not shrink while the syphon waits for a busy destination": Change(
                "syphon.destination:Destination._contents",
                "message.unsealed.message_at(now)",
                "message.unsealed.message",
            ),
            "a session with a short lock is not kept while its message is on its way": (
                Change(
                    "syphon.session_source:SessionSource._until_ended",
                    """
                while not await clock.wait_for(one.ended, self._check_in_s(one.link)):
                    ...
            """,
                    "await one.ended.wait()",
                ),
                Change("syphon.session_source:SessionSource._forward", "await self._renew_lock(link)", "None"),
                Change("syphon.session_source:SessionSource.lock_left_s", "one.link.session_locked_until_utc", "None"),
            ),
            "a backlog queue that failed once is forgotten": Change(
                "rules.backlog:BacklogChoice.pick",
                "usable = [queue for queue in self._queues if queue not in tried and (not self._quarantine.is_in(queue, now))]",
                """
                self._queues = [queue for queue in self._queues if not self._quarantine.is_in(queue, now)]
                usable = [queue for queue in self._queues if queue not in tried]
                if not usable:
                    return None
            """,
            ),
            "a backlog queue that failed is not left out": Change(
                "rules.backlog:Quarantine.is_in", "term is not None and now < term.until_at", "False"
            ),
            "a backlog queue that rejects the credential ends the diversion": Change(
                "pairing.diversion:Diversion._send_to",
                "self._note(tried.queue, error, causes)",
                """
                if type(error).__name__ == 'ServiceBusAuthenticationError':
                    return tried.queue
                self._note(tried.queue, error, causes)
            """,
            ),
        },
        "failover": {
            "a busy server is no outage": Change(
                "errors:ServiceBusServerBusyError", "is_outage = True", "is_outage = False"
            ),
            "a missing right is an outage": Change(
                "errors:ServiceBusAuthorizationError",
                "_status = 403",
                """
                _status = 403
                is_outage = True
            """,
            ),
            "a success does not clear the deadline": (
                Change(
                    "rules.failover:EntityFailover._apply",
                    "after is not FailoverState.SUSPECT",
                    "after is FailoverState.FAILED_OVER",
                ),
                Change(
                    "rules.failover:EntityFailover.advance",
                    "return self._apply(FailoverEvent.DEADLINE_PASSED, now)",
                    """
                self.state = FailoverState.SUSPECT
                return self._apply(FailoverEvent.DEADLINE_PASSED, now)
            """,
                ),
            ),
            "the interval is cut in half": Change(
                "rules.failover:EntityFailover.outage", "self._failover_interval_s", "self._failover_interval_s / 2"
            ),
            "one accepted ping is always enough": Change(
                "rules.failover:EntityFailover.ping_answered", "self._pings_to_recover", "1"
            ),
            "a refused ping brings the entity back": Change(
                "pairing.pinger:Pinger._send_ping", "return error.with_traceback(None)", "return None"
            ),
            "pings carry no key": Change("rules.failover:EntityFailover.outage", "self.ping_keys = keys", ""),
            "sends go on to the primary while it is failed over": Change(
                "client.route:PairedRoute.send",
                "self._to_backlog(batch, deadline) if self._entity.is_failed_over else ...",
                "self._to_backlog(batch, deadline) if self._entity.is_failed_over and len(batch) == 1 else ...",
            ),
            "an outage keeps everybody from filling a batch": Change(
                "client.route:PairedRoute.limits",
                """
                if not self._entity.failed(error, PingKeys()):
                    raise
            """,
                "raise",
            ),
            "all entities share one state": Change("pairing.state:PairState.entity", "canonical(path)", "'*'"),
            "no client pings": Change(
                "rules.failover:EntityFailover._apply", "now if after is FailoverState.FAILED_OVER else None", "None"
            ),
            "the broker delivers pings": Change(
                "broker.admission:arrivals",
                "content.content_type is not None and is_ping(content)",
                "False",
            ),
            "the diversion reports a doubt as a refusal": (
                Change(
                    "pairing.diversion:Diversion._unavailable",
                    "BacklogUnavailableError(..., causes, is_in_doubt=is_in_doubt)",
                    "BacklogUnavailableError(..., causes, is_in_doubt=False)",
                ),
                Change("client.route:PairedRoute._conclude", "keep_doubt(error, is_in_doubt)", ""),
            ),
            "a refusal of a link that was opened anew settles what the stale one left in doubt": Change(
                "client.route:PairedRoute._answered_by_primary",
                "sending.is_in_doubt = error.is_in_doubt",
                "",
            ),
            "a ping that hangs delays the next one by its whole interval": Change(
                "rules.failover:EntityFailover.ping_answered", "self._next_ping_at", "now + self._ping_interval_s"
            ),
            "a later refusal hides that an earlier try was in doubt": Change(
                "retry:RetryPolicy._again.once",
                "keep_doubt(last[0], keep_doubt(error, last[0].is_in_doubt).is_in_doubt)",
                "",
            ),
            "a secondary that is silent takes all the time there is, and the primary is not asked": (
                Change("pairing.session_order:SessionOrder.must_divert", "(deadline - now) / 4", "deadline - now"),
                Change("pairing.session_order:SessionOrder._list", "(deadline - now) / 4", "deadline - now"),
            ),
            "a refusal of one message settles what the shared transfer before it left in doubt": Change(
                "client.outbox:Outbox._send_alone",
                "_Rejected(len(group), is_in_doubt=error.is_in_doubt)",
                "_Rejected(len(group), is_in_doubt=False)",
            ),
            "a full entity accepts pings that fit into its gap": Change(
                "broker.storage:Storage.accepts", "max(size_bytes, self.usage.refused_bytes)", "size_bytes"
            ),
            "a rejected credential is an outage": Change(
                "errors:ServiceBusAuthenticationError",
                "_status = 401",
                """
                _status = 401
                is_outage = True
            """,
            ),
        },
        "time": {
            "a quarter of a timeout just above 15 s is kept for the diversion": Change(
                "pairing.diversion:reserve_s", "min(timeout_s / 4, (timeout_s - FRAGMENT_S) / 2)", "timeout_s / 4"
            ),
            "a later outage moves the deadline": Change(
                "rules.failover:EntityFailover.outage",
                """
                if self.deadline_at is None:
                    self.deadline_at = now + self._failover_interval_s
            """,
                "self.deadline_at = now + self._failover_interval_s",
            ),
            "a quarantine lasts ten times as long": (
                Change("rules.backlog", "QUARANTINE_S: Final = ...", "QUARANTINE_S: Final = 300.0"),
                Change("rules.backlog", "QUARANTINE_MAX_S: Final = ...", "QUARANTINE_MAX_S: Final = 3000.0"),
            ),
            "a grace lasts three times as long": Change(
                "rules.refusal:Refusal.is_missing_for", "self._missing_s >= grace_s", "self._missing_s >= 3 * grace_s"
            ),
            "an entity that was gone, and back, and is gone again was missing all the time": (
                Change(
                    "syphon.destination:Destination._answered",
                    "failures, self.refusal = (self.failures, None)",
                    """
                failures = self.failures
                if failures:
                    self._earlier = self.refusal
                self.refusal = None
            """,
                ),
                Change(
                    "syphon.destination:Destination._failed",
                    "self.refusal or Refusal()",
                    "self.refusal or getattr(self, '_earlier', None) or Refusal()",
                ),
            ),
            "messages are redirected before the primary has refused them for long enough": Change(
                "rules.refusal:Refusal.redirect_at", "self.outage_at + after.total_seconds()", "self.outage_at"
            ),
            "an answer does not end an outage that messages are redirected for": Change(
                "rules.refusal:Refusal.add", "self.outage_at = None", "pass"
            ),
            "a duplicate renews its window": Change(
                "broker.storage:Storage.is_known",
                "return self.seen.is_known(identity, now, self.policy.duplicate_window_s)",
                """
                is_known = self.seen.is_known(identity, now, self.policy.duplicate_window_s)
                if is_known:
                    place = self.seen._in_order.index(identity)
                    del self.seen._in_order[place], self.seen._seen_at[self.seen._forgotten + place]
                    self.seen.remember(identity, now)
                return is_known
            """,
            ),
            "a syphon that is stopped gives messages back for as long as it takes": Change(
                "syphon.source", "RELEASE_S: Final = ...", "RELEASE_S: Final = 500.0"
            ),
            "a rate limit forgets the transfers that wait for it": Change(
                "rate_limit:RateLimiter.reserve", "max(clock.monotonic(), self._free_at)", "clock.monotonic()"
            ),
            "a topic forgets rules that came after its last message": Change(
                "broker.topic:Topic._forget_index", "self._index = None", "self._index = self._index"
            ),
            "a rule without an action hides the matching rules behind it": Change(
                "broker.topic:Subscription.publish", "is_plain_due or rule.has_action", "is_plain_due"
            ),
            "a syphon asks again and again for a parked message that another one has taken": Change(
                "syphon.destination:Destination._fetch_parked",
                """
                for number in numbers:
                    known.pop(number, None)
            """,
                """
                for message in messages:
                    known.pop(message.sequence_number, None)
            """,
            ),
            "a lock that expires while its renewal hangs is not lost": Change(
                "syphon.source:InFlight.is_locked",
                "self.source.lock_left_s(self, now) <= 0",
                "self.source.lock_left_s(self, now) <= -1000",
            ),
            "a topic keeps the bytes of a subscription that was deleted": Change(
                "broker.namespace:Namespace._removed", "fragment.detach()", ""
            ),
            "the diversion expects a fragment to be replaced within 12 s": Change(
                "pairing.diversion", "FRAGMENT_S: Final = 15.0", "FRAGMENT_S: Final = 12.0"
            ),
        },
        "lock": {
            "a stale lock is accepted": (
                Change("broker.fragment:Fragment.check_lock", "self.advance(now)", ""),
                Change("broker.fragment:Fragment._held", "entry.locked_until <= now", "False"),
                Change("broker.request_gate:RequestGate.check", "touch(entity, call.now)", ""),
            ),
            "a renewal moves nothing": Change(
                "broker.fragment:Fragment.renew",
                "self._locks.move(entry, now + self.policy.lock_duration_s)",
                "now + self.policy.lock_duration_s",
            ),
            "a message is given to two receivers": Change(
                "broker.fragment:Fragment._pop_number",
                "self._fresh.popleft()",
                """
                if len(self._fresh) % 3 or self._entries.get(self._fresh[0]) is None:
                    self._fresh.popleft()
            """,
            ),
            "a session is given to two receivers": (
                Change(
                    "broker.session:Sessions.lock",
                    """
                if session.token:
                    return False
            """,
                    """
                if session.token and (not session.message_count):
                    return False
            """,
                ),
                Change("broker.session:Sessions.lock", "self._available.pop(session_id, None)", ""),
            ),
            "the state of a session is lost when it is empty": Change(
                "broker.session:Sessions._forget_if_empty", "session.is_empty", "not session.message_count"
            ),
            "a lock ends too early": Change(
                "broker.locks:Locks.move",
                "self.ends.set(entry.number, until)",
                "self.ends.set(entry.token, until - 1.5)",
            ),
            "a message of the secondary is settled in the primary": Change(
                "client.both_links:BothLinks.settle", "message.namespace", "'primary'"
            ),
            "what a namespace delivers while the other answers is forgotten until its lock expires": Change(
                "client.both_links:BothLinks._stop", "self._held.extend(outcome)", "pass"
            ),
            "a session of the secondary is looked for in the primary only": Change(
                "client.both_links:BothLinks._open_named", "await secondary.peek(**...)", "[]"
            ),
            "a message of the secondary is marked as one of the primary": Change(
                "client.both_links:marked", "message.namespace = side", "pass"
            ),
            "messages that no call has returned stay locked when their receiver is closed": Change(
                "client.both_links:BothLinks.close", "not self._is_deleting", "False"
            ),
        },
        "identity": {
            "a message gets a new id at each try": Change(
                "client.encoding:encoded_message",
                "encode_message(message, clock.now)",
                "encode_message(message, clock.now).rewritten(message_id=new_id())",
            ),
            "duplicates are not detected": Change(
                "broker.storage:Storage.is_known",
                "return self.seen.is_known(identity, now, self.policy.duplicate_window_s)",
                "return False",
            ),
            "duplicates with a key are not detected": Change(
                "broker.deduplication:identity_of", "identity_with_key(message_id, key)", "None"
            ),
            "a send that succeeded is repeated": Change(
                "client.route:PairedRoute._answered_by_primary",
                "sending.set_result(PRIMARY)",
                """
                sending.set_result(PRIMARY)
                if len(batch) > 2:
                    self.link.send(batch, timeout_s=5.0)
            """,
            ),
            "a diversion goes to two queues": Change(
                "pairing.diversion:Diversion._send_to",
                "self.accepted(sealed)",
                """
                self._attempt(self._pair.backlog_queues[-1], sealed, 5.0)
                self.accepted(sealed)
            """,
            ),
            "a key moves to another fragment when its own is struck": Change(
                "broker.placement:Placement.choose",
                "fragment = self.reached(call, 0 if key is None else self.fragment_for(key).index)",
                """
                home = 0 if key is None else self.fragment_for(key).index
                if self._faults.stopping(call, self._path, home) is not None:
                    home = (home + 1) % len(self._fragments)
                fragment = self.reached(call, home)
            """,
            ),
            "a missing entity of the primary counts as an outage": Change(
                "syphon.destination:Destination._add", "is_outage(error, has_sent_before=False, **...)", "True"
            ),
            "what the secondary accepted is sent to the primary again": (
                Change(
                    "syphon.destination:Destination._transfer",
                    "message.accept()",
                    "self._is_elsewhere or message.accept()",
                ),
                Change(
                    "syphon.destination:Destination._transfer",
                    "not message.source.is_ordered",
                    "not message.source.is_ordered and not self._is_elsewhere",
                ),
            ),
        },
        "order": {
            "sessions do not queue up behind what was diverted": Change(
                "pairing.session_order:SessionOrder.must_divert",
                """
                if not is_clear:
                    self._known.diverted(session_id)
                    return True
            """,
                """
                if not is_clear:
                    return False
            """,
            ),
            "sessions that are listed in the backlog count as clear": Change(
                "rules.known_sessions:ListedSessions.is_clear",
                "native_session_id not in self._native and (not self._known.is_diverted_since(session_id, self._diversions))",
                "not self._known.is_diverted_since(session_id, self._diversions)",
            ),
            "the ordered syphon brings a session home backwards": Change(
                "syphon.session_source:SessionSource._forward", "taken.pop(0)", "taken.pop()"
            ),
            "what comes back goes to the end": Change(
                "broker.fragment:Fragment._make_ready",
                """
                if is_fresh:
                    self._fresh.append(entry.number)
                else:
                    ...
            """,
                """
                if is_fresh or len(self._fresh) > 2:
                    self._fresh.appendleft(entry.number)
                else:
                    ...
            """,
            ),
            "a message is shown before its time": Change(
                "broker.admission:arrivals", "at.timestamp() > now", "at.timestamp() > now + 10"
            ),
            "what has expired is still handed out": Change(
                "broker.storage:Storage._set_expiry", "entry.enqueued_at + ttl_s", "entry.enqueued_at + ttl_s + 30"
            ),
            "a message expires too early": Change(
                "broker.storage:Storage._set_expiry", "entry.enqueued_at + ttl_s", "entry.enqueued_at + ttl_s / 2"
            ),
            "an ordered session is redirected": Change(
                "syphon.destination:Destination._takes", "self._is_elsewhere and source.is_ordered", "False"
            ),
        },
        "count": {
            "scheduled messages are not counted down": Change(
                "broker.storage:Storage._remove", "self.scheduled_count -= 1", ""
            ),
            "bytes are not given back": Change(
                "broker.storage:Storage._remove", "self.usage.size_bytes -= entry.size_bytes", ""
            ),
            "an entity is reported as available while fragments are down": Change(
                "broker.faults:Faults.unreachable", "not fault.operations", "fault.operations"
            ),
            "an abandoned delivery is not counted": Change(
                "broker.fragment:Fragment.settle",
                "self._return(entry, now, is_failed=True)",
                "self._return(entry, now, is_failed=False)",
            ),
            "a message is dead-lettered one delivery too early": Change(
                "broker.fragment:Fragment._return",
                "entry.delivery_count >= self.policy.max_delivery_count",
                "entry.delivery_count >= self.policy.max_delivery_count - 1",
            ),
            "the client counts transfers for messages": Change(
                "pairing.diversion:Diversion.accepted", "self._entity.diverted += count", "self._entity.diverted += 1"
            ),
            "the copy that a redirect may leave in the primary is not named": Change(
                "syphon.destination:Destination._transfer", "error.is_in_doubt", "False"
            ),
            "two drains of a client share their counts": Change(
                "syphon.syphon:Syphon.__init__",
                "Progress()",
                "Progress() if state.syphons < 2 else vars(state).setdefault('_progress', Progress())",
            ),
            "a worker counts what an earlier syphon has drained again": Change(
                "worker.service:SyphonWorker._add", "self._syphon = None", ""
            ),
        },
        "limit": {
            "one byte too much is let through": (
                Change(
                    "client.route:DirectRoute._check",
                    "largest > limits.max_message_size_bytes",
                    "largest > limits.max_message_size_bytes + 1",
                ),
                Change(
                    "broker.admission:admit",
                    "size_bytes > policy.max_message_size_bytes",
                    "size_bytes > policy.max_message_size_bytes + 1",
                ),
            ),
            "one byte too little is let through": Change(
                "client.route:DirectRoute._check",
                "largest > limits.max_message_size_bytes",
                "largest >= limits.max_message_size_bytes",
            ),
            "only messages that travel alone are measured": Change(
                "client.route:DirectRoute._check",
                "largest > limits.max_message_size_bytes",
                "len(batch) == 1 and largest > limits.max_message_size_bytes",
            ),
            "a front end gives out what has expired there": Change(
                "broker.fragment:Fragment.take_from_cache",
                """
                if entry.expires_at <= now:
                    self._return(entry, now, is_failed=False)
                    return None
            """,
                "",
            ),
        },
        "secret": {
            "an error tells the body": Change(
                "client.route:DirectRoute._check",
                "self._too_large('a message', largest, ...)",
                "self._too_large(str(bytes(batch.messages[0])), largest, ...)",
            ),
            "a log event tells the body": Change(
                "syphon.source:Source.dead_letter",
                'self.pair.record("syphon.dead_lettered", ..., path, queue=self.queue, **...)',
                'self.pair.record("syphon.dead_lettered", ..., path, queue=str(message), **...)',
            ),
            "the repr of a message tells its body": Change(
                "message:ServiceBusMessage._shown",
                "f\"{name}({', '.join(fields)})\"",
                "f\"{name}({self}, {', '.join(fields)})\"",
            ),
            "the error of a refused token contains it": Change(
                "emulator.sas:Authorizer._of_signature", "key_name[:64]", "text"
            ),
        },
        "progress": {
            "the pinger never rests": Change("rules.failover:EntityFailover.ping_started", "self._ping_at = None", ""),
            "a wait too short to pass never ends": Change(
                "hosting.host", "LEAST_WAIT_S: Final = ...", "LEAST_WAIT_S: Final = 0.0"
            ),
            "a destination that refused is never tried again": Change(
                "rules.refusal:Refusal.add", "_pause_s(self.failures)", "1000000000.0"
            ),
            "a look through fragments breaks off when one of them is lost": (
                Change(
                    "broker.entity:PeekCursor.order",
                    "self._order[at:]",
                    "[index for index in self._order[at:] if index in reachable]",
                ),
                Change(
                    "broker.entity:PeekCursor.order",
                    "self._last_number >> COUNTER_BITS not in self._order",
                    "not self._order",
                ),
            ),
            "a namespace that always has messages is the only one that is asked": (
                Change("client.both_links:BothLinks._order", "self._asked_at[other] <= now - ASK_AGAIN_S", "False"),
                Change("client.both_links", "HEAD_START_S: Final = ...", "HEAD_START_S: Final = 1000.0"),
            ),
            "a namespace that fails is asked again without a pause": Change(
                "client.both_links:BothLinks._waits_until", "return refusal.retry_at", "return float('-inf')"
            ),
            "one namespace that fails ends a receive from both": Change(
                "client.both_links:BothLinks._receive",
                "if not running: ...",
                """
                if errors:
                    raise next(iter(errors.values()))
                if not running:
                    start('primary', now)
            """,
            ),
            "a session that was accepted second stays held": Change(
                "client.both_links:BothLinks._open_first", "side != winner", "False"
            ),
            "a redirect never ends": Change(
                "syphon.destination:Destination._probe_primary", "self._is_reachable = True", "break"
            ),
            "a paused worker drains on": Change(
                "worker.service:SyphonWorker._run_syphon", "self._pause_requested.wait()", "self._stop_requested.wait()"
            ),
        },
        "filters": {
            "a filter with several values matches only the first": Change(
                "broker.rule_index:_Group.add", "set(equality.values)", "equality.values[:1]"
            ),
            "a filter that is unknown without a value is left out": Change(
                "broker.rule_index:_Group.add", "not equality.needs_value", "False"
            ),
            "a message without a value is not tried": Change(
                "broker.rule_index:_Group.find", "into += self.without_value", "pass"
            ),
            "a value of another type is no error": Change("broker.rule_index:_Group.add", "equality.is_sql", "False"),
            "a number with a fraction of zero equals no integer": Change(
                "broker.rule_index:_Group.find", "into += self.all", "pass"
            ),
            "the name of a property is found in one case only": Change(
                "broker.rule_index:RuleIndex.candidates", "folded.get(name.lower())", "None"
            ),
            "a property in the case of the filter loses to another one": Change(
                "broker.rule_index:RuleIndex.candidates",
                "properties[name] if name in properties else folded.get(name.lower())",
                "folded.get(name.lower())",
            ),
            "rules are tried in another order": Change(
                "broker.rule_index:RuleIndex.candidates", "found.sort()", "pass"
            ),
            "a rule that no property decides is left out": Change(
                "broker.rule_index:RuleIndex.__init__", "self._always.append(position)", "pass"
            ),
            "a filter that excludes values is found by them": Change(
                "broker.rule_index:sql_equality",
                "isinstance(first, In) and not first.is_negated",
                "isinstance(first, In)",
            ),
        },
        "rights": {
            "a token for q1 grants q10": Change(
                "emulator.sas:is_at_or_below", "inner.startswith(outer + '/')", "inner.startswith(outer)"
            ),
            "a token counts beyond its time": Change(
                "emulator.sas:Authorizer._of_signature", "expires_at <= now", "expires_at <= now - 3600"
            ),
            "any signature proves a token": Change(
                "emulator.sas:Authorizer._of_signature",
                "hmac.compare_digest(signature_of(fields['sr'], fields['se'], key), signature)",
                "signature",
            ),
            "a key of a name counts for every key of that name": Change(
                "emulator.sas:Authorizer._of_signature",
                """
                for rule, limit in signers:
                    ...
            """,
                """
                for rule, limit in signers if scope else ():
                    if rule.key_name == key_name and entity_rules and rule in entity_rules:
                        return Grant(scope, _rights(rule), expires_at)
                    ...
            """,
            ),
            "every right includes every other": Change(
                "emulator.sas:_rights",
                "ALL_RIGHTS if AccessRights.MANAGE in rule.rights else frozenset(rule.rights)",
                "ALL_RIGHTS",
            ),
            "who has any token may attach": Change(
                "emulator.amqp.peer:Peer.check_right", "right not in self.rights(path)", "not self.grants.has_begun"
            ),
        },
    }
)
