"""Planted bugs of the AMQP transport. The simulation over the network looks for them, or else the transport's tests."""
# ruff: noqa: E501 - long statements

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.change import Change, Mutant, mutants_of

TRANSPORT_MUTANTS: Final[tuple[Mutant, ...]] = mutants_of(
    {
        "transport": {
            # -- sends -----------------------------------------------------------------------------------------------------
            "unsettled transfers are forgotten when the link is lost": Change(
                "transport.amqp.transfers:Transfers.lost", "self._fail_unsettled(end, error)", ""
            ),
            "a transfer in doubt is reported as not sent": Change(
                "transport.amqp.transfers:Transfers._fail_unsettled",
                "own_error(error, is_in_doubt=True)",
                "own_error(error, is_in_doubt=False)",
            ),
            "a transfer that timed out is reported as not sent": Change(
                "transport.amqp.transfers:Transfer.is_in_doubt", "self.has_left", "False"
            ),
            "transfers of one key are pipelined": Change(
                "client.outbox:Outbox.send", "lane is None or not (lane.in_flight or lane.waiting)", "True"
            ),
            "later transfers of a key overtake earlier ones": Change(
                "client.outbox:Outbox.send", "lane.waiting.append(call)", "lane.waiting.appendleft(call)"
            ),
            "the messages of a key are divided among the groups of keys": Change(
                "client.outbox:Outbox.send",
                "str(fragment_of(key, KEY_GROUPS))",
                "str(fragment_of(messages[0].message_id or key, KEY_GROUPS))",
            ),
            "the next transfer of a key is never sent": Change(
                "client.outbox:Outbox._answered",
                "lane.waiting",
                "lane.waiting and (lane.key is None or len(group) > 1)",
            ),
            "credit is ignored": Change(
                "transport.amqp.transfers:Transfers._pump",
                "waiting and (not session.held_bytes) and (link.credit > 0)",
                "waiting and (not session.held_bytes)",
            ),
            "the deadline does not apply to the wait for credit": Change(
                "transport.amqp.transfers:Transfers.send",
                "self._deadlines.add(transfer)",
                """
                if self.end is None or self.end.link.credit > 0:
                    self._deadlines.add(transfer)
            """,
            ),
            "a cancelled send leaves all the same": (
                Change(
                    "transport.amqp.transfers:Transfers._pump",
                    """
                if transfer.future.done():
                    continue
            """,
                    "",
                ),
                Change("transport.amqp.transfers:Transfers._withdraw", "self._waiting.remove(transfer)", ""),
            ),
            "a released transfer counts as accepted": Change(
                "transport.amqp.transfers:Transfer.answer",
                "isinstance(outcome, Accepted)",
                "isinstance(outcome, Accepted | Released)",
            ),
            "every outcome counts as accepted": Change(
                "transport.amqp.transfers:Transfer.answer",
                "isinstance(outcome, Accepted)",
                "not isinstance(outcome, Declared)",
            ),
            "waiting calls do not end when the link is lost": Change(
                "transport.amqp.transfers:Transfers.lost", "self._fail_waiting(error)", ""
            ),
            "a list is sent without the format of a batch": Change(
                "transport.amqp.transfers:Transfers._pump", "transfer.batch.message_format", "0"
            ),
            "a list loses its last message": Change(
                "amqp.batch:EncodedBatch.payload",
                """
                for message in messages:
                    ...
            """,
                """
                for message in messages[:-1]:
                    ...
            """,
            ),
            "sequence numbers are returned in the wrong order": Change(
                "transport.amqp.sender:AmqpSender.schedule",
                "return numbers",
                "return numbers[::-1]",
            ),
            # -- connection ------------------------------------------------------------------------------------------------
            "the tail of a split frame is lost": Change(
                "transport.amqp.connection:AmqpConnection.on_bytes",
                "self.engine.receive_bytes(data, now=now)",
                "self.engine.receive_bytes(data if len(data) > 7 else b'', now=now)",
            ),
            "a lost connection is not noticed": Change(
                "transport.amqp.connection:AmqpConnection.on_lost",
                "self._lose(ServiceBusConnectionError(f'the connection to {self._namespace} was lost: {said}'))",
                "",
            ),
            "a silent peer is never dropped": Change(
                "transport.amqp.connection:AmqpConnection.suspect.judge",
                "self.heard_at < asked_at and (not self.is_over)",
                "False",
            ),
            "the engine is not given the time": Change(
                "transport.amqp.connection:AmqpConnection._on_time",
                "self.engine.pass_time(now=clock.monotonic())",
                "",
            ),
            "writing does not go on after the network was full": Change(
                "transport.amqp.connection:AmqpConnection.on_full",
                """
                if not is_full:
                    self.flush()
            """,
                "",
            ),
            "a lost connection is used again": Change(
                "transport.amqp.connections:Connections.usable",
                "self._shared = [shared for shared in self._shared if not shared.connection.is_over]",
                "",
            ),
            "tokens are renewed after they have expired": Change(
                "transport.amqp.tokens", "RENEWED_AFTER: Final = ...", "RENEWED_AFTER: Final = 1.5"
            ),
            "a token that could not be renewed is not tried again": Change(
                "transport.amqp.tokens:Tokens._renew_due",
                "self._renew_at[path] = now + RETRY_S",
                "del self._renew_at[path]",
            ),
            # -- receiving -------------------------------------------------------------------------------------------------
            "a session is reopened silently": Change(
                "transport.amqp.receiver:AmqpReceiver._opened",
                """
                if self._was_accepted:
                    raise self._session_lost()
            """,
                "",
            ),
            "an unanswered drain is waited for by the next call": Change(
                "transport.amqp.inbox:Inbox.wait",
                "link.credit < count or self._drain is not None",
                "link.credit < count and self._drain is None",
            ),
            "a drain takes back more than was asked for": Change(
                "transport.amqp.inbox:Inbox.drained", "self._arrival", "None"
            ),
            "a cancelled call discards what has come": Change(
                "transport.amqp.inbox:Inbox.wait",
                "self._schedule_release()",
                "self._queue.clear()",
            ),
            "what comes between two calls is released": Change(
                "transport.amqp.inbox:Inbox.arrived",
                "self._queue.append(delivery)",
                """
                if self._arrival is None and self._is_locking:
                    self._release([delivery])
                    return
                self._queue.append(delivery)
            """,
            ),
            "close gives nothing back": Change(
                "transport.amqp.inbox:Inbox.close", "end.link.settle_many(mine, RELEASED, settled=True)", ""
            ),
            "deleted messages are dropped when the link is lost": Change(
                "transport.amqp.inbox:Inbox.lost", "self._is_locking", "True"
            ),
            "prefetched messages are never replaced": Change(
                "transport.amqp.inbox:Inbox._keep_prefetching", "end.link.credit <= room // 2", "end.link.credit < 0"
            ),
            "a receiver that fetches one message ahead is granted no credit for it": Change(
                "transport.amqp.inbox:Inbox._keep_prefetching",
                "end.link.credit <= room // 2",
                "end.link.credit < room // 2",
            ),
            "a receiver that has released everything fetches nothing": Change(
                "transport.amqp.inbox:Inbox.wait", "self._keep_prefetching()", ""
            ),
            "too much credit is granted": Change(
                "transport.amqp.inbox:Inbox.wait", "max(count, link.credit)", "max(count, link.credit) + 1"
            ),
            # -- settling --------------------------------------------------------------------------------------------------
            "the wrong delivery is settled": Change(
                "transport.amqp.settlements:Settlements.write",
                "self._link.settle_many(together, group.state, settled=False)",
                """
                oldest = [*self._link.unsettled.values()][:len(together)]
                self._link.settle_many(oldest, group.state, settled=False)
            """,
            ),
            "a settlement is done when it is written": Change(
                "transport.amqp.settlements:Settlements.write",
                "group.has_left = True",
                """
                group.has_left = True
                for each in together:
                    group.futures[each].set_result(None)
            """,
            ),
            "a refused settlement counts as done": Change(
                "transport.amqp.settlements:Settlements.confirmed",
                "future.set_exception(refusal_of(group.doing, outcome))",
                "future.set_result(None)",
            ),
            "a settlement in doubt is reported as not done": Change(
                "transport.amqp.settlements:Settlements.lost", "group.has_left", "False"
            ),
            "settlements of a lost link wait for their deadline": Change(
                "transport.amqp.settlements:Settlements.lost",
                "self._on_lost(LostSettlement(delivery, group.settlement, group.deadline, future, own))",
                "pass",
            ),
            "dead-lettering loses its reason": Change(
                "transport.amqp.settlements:outcome_of",
                "{DEAD_LETTER_REASON: settlement.reason, DEAD_LETTER_DESCRIPTION: ...}",
                "{DEAD_LETTER_DESCRIPTION: ...}",
            ),
            "abandoned messages are deferred": Change(
                "transport.amqp.settlements:outcome_of", "return _ABANDONED", "return _DEFERRED"
            ),
            "a message is settled outside of the transaction": Change(
                "transport.amqp.receiver:AmqpReceiver._settle_otherwise",
                "TransactionalState(begun.txn_id, outcome_of(settlement))",
                "outcome_of(settlement)",
            ),
            "a token of a lost link completes what should be abandoned": Change(
                "transport.amqp.receiver",
                "servicebus.DISPOSITION_STATUSES[settlement.mode]",
                "servicebus.DISPOSITION_STATUSES[SettleMode.COMPLETE]",
            ),
            "the doubt of the first settlement is forgotten by the second": Change(
                "transport.amqp.receiver:AmqpReceiver._settle_lost",
                "keep_doubt(error, lost.error.is_in_doubt)",
                "error",
            ),
            # -- requests --------------------------------------------------------------------------------------------------
            "a reply answers the oldest request": Change(
                "transport.amqp.requests:_ReplyEnd.on_delivery",
                "self._waiting.get(key)",
                "next(iter(self._waiting.values()), None)",
            ),
            "a lost request is reported as not sent": Change(
                "transport.amqp.requests:_RequestEnd.on_detached",
                "own_error(cause, is_in_doubt=True)",
                "own_error(cause, is_in_doubt=False)",
            ),
            "a request that was accepted waits for its reply after the link is lost": Change(
                "transport.amqp.requests:_RequestEnd.on_detached", "request.has_left", "False"
            ),
            "a locked message is renewed by one request for all and all fail together": Change(
                "transport.amqp.token_requests:TokenRequests._answer",
                "len(futures) > 1 and not error.is_in_doubt and not error.is_transient",
                "False",
            ),
            "requests of a session go without its link": Change(
                "transport.amqp.receiver:AmqpReceiver._ask_about",
                "None if end is None else end.link.name",
                "None",
            ),
            # -- transactions ----------------------------------------------------------------------------------------------
            "a commit that was not answered counts as done": Change(
                "transport.amqp.transactions:AmqpTransaction.commit",
                "await self._owner.control_of(self._wire).discharge(..., fail=False, deadline=deadline)",
                """
                try:
                    await self._owner.control_of(self._wire).discharge(self._state.txn_id, fail=False, deadline=deadline)
                except (ServiceBusConnectionError, OperationTimeoutError):
                    return
            """,
            ),
            "a commit after the connection was lost counts as done": Change(
                "transport.amqp.transactions:AmqpTransaction.commit",
                "raise ServiceBusConnectionError(..., is_in_doubt=False)",
                "return",
            ),
            "a transaction moves to another connection": Change(
                "transport.amqp.transactions:AmqpTransaction.state_on", "wire is not self._wire", "False"
            ),
            "a transfer of a transaction leaves on any connection": Change(
                "transport.amqp.sender:AmqpSender._send_in",
                "Transfer(..., wire=end.wire, **...)",
                "Transfer(..., **...)",
            ),
            "a rollback is sent as a commit": Change(
                "transport.amqp.transactions:AmqpTransaction.rollback",
                "self._owner.control_of(self._wire).discharge(..., fail=True, deadline=deadline)",
                "self._owner.control_of(self._wire).discharge(..., fail=False, deadline=deadline)",
            ),
            "a send of a transaction goes without its state": Change(
                "transport.amqp.sender:AmqpSender._send_in",
                "state = await transaction.state_on(end.wire, deadline)",
                "state = await transaction.state_on(end.wire, deadline) and None",
            ),
        },
    }
)
