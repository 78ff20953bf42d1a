"""Planted bugs of the AMQP transport. The simulation over the network looks for them, or else the transport's tests."""
# ruff: noqa: E501 - source text stands here as it stands there

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.catalogue import Mutant, Patch

TRANSPORT: Final = "transport"


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, TRANSPORT, (Patch(f"transport/amqp/{file}", old, new),))


TRANSPORT_MUTANTS: Final[tuple[Mutant, ...]] = (
    # -- sends -----------------------------------------------------------------------------------------------------
    _mutant(
        "unsettled transfers are forgotten when the link is lost",
        "transfers.py",
        "        self._fail_unsettled(end, error)\n        if end is self._end:\n",
        "        if end is self._end:\n",
    ),
    _mutant(
        "a transfer in doubt is reported as not sent",
        "transfers.py",
        "                delivery.owner.fail(own_error(error, is_in_doubt=True))",
        "                delivery.owner.fail(own_error(error, is_in_doubt=False))",
    ),
    _mutant(
        "a transfer that timed out is reported as not sent",
        "transfers.py",
        "        return self.has_left\n\n    def answer",
        "        return False\n\n    def answer",
    ),
    _mutant(
        "transfers of one key are pipelined",
        "transfers.py",
        "        else:\n            lane.append(transfer)\n",
        "        else:\n            self._waiting.append(transfer)\n",
    ),
    _mutant(
        "later transfers of a key overtake earlier ones",
        "transfers.py",
        "        else:\n            lane.append(transfer)\n",
        "        else:\n            lane.insert(1, transfer)\n",
    ),
    _mutant(
        "the next transfer of a key is never sent",
        "transfers.py",
        "            self._waiting.append(lane[0])\n            self._pump()\n",
        "            self._waiting.append(lane[0])\n",
    ),
    _mutant(
        "credit is ignored",
        "transfers.py",
        "not session.held_bytes and link.credit > 0:",
        "not session.held_bytes:",
    ),
    _mutant(
        "the deadline does not apply to the wait for credit",
        "transfers.py",
        "transfer: Transfer) -> None:\n        self._deadlines.add(transfer)\n",
        "transfer: Transfer) -> None:\n        if self.end is None or self.end.link.credit > 0:\n            self._deadlines.add(transfer)\n",
    ),
    Mutant(
        "a cancelled send leaves all the same",
        TRANSPORT,
        (
            Patch(
                "transport/amqp/transfers.py", "            if transfer.future.done():\n                continue\n", ""
            ),
            Patch("transport/amqp/transfers.py", "            self._waiting.remove(transfer)\n", "            pass\n"),
        ),
    ),
    _mutant(
        "a released transfer counts as accepted",
        "transfers.py",
        "        if isinstance(outcome, Accepted):\n",
        "        if isinstance(outcome, Accepted | Released):\n",
    ),
    _mutant(
        "every outcome counts as accepted",
        "transfers.py",
        "        if isinstance(outcome, Accepted):\n",
        "        if not isinstance(outcome, Declared):\n",
    ),
    _mutant(
        "waiting calls do not end when the link is lost",
        "transfers.py",
        "            self._end = None\n            self._fail_waiting(error)\n",
        "            self._end = None\n",
    ),
    _mutant(
        "a list is sent without the format of a batch",
        "sender.py",
        "                message_format = BATCH_FORMAT\n",
        "                message_format = 0\n",
    ),
    _mutant(
        "a list loses its last message",
        "sender.py",
        "payload = join_batch(messages, via_key, ",
        "payload = join_batch(messages[:-1], via_key, ",
    ),
    _mutant(
        "sequence numbers are returned in the wrong order",
        "sender.py",
        "        return [int(number) for number in numbers]\n",
        "        return [int(number) for number in numbers[::-1]]\n",
    ),
    # -- connection ------------------------------------------------------------------------------------------------
    _mutant(
        "the tail of a split frame is lost",
        "connection.py",
        "        self.engine.receive_bytes(data, now=now)\n",
        "        self.engine.receive_bytes(data if len(data) > 7 else b'', now=now)\n",
    ),
    _mutant(
        "a lost connection is not noticed",
        "connection.py",
        '        self._lose(ServiceBusConnectionError(f"the connection to {self._namespace} was lost: {said}"))\n',
        "        pass\n",
    ),
    _mutant(
        "a silent peer is never dropped",
        "connection.py",
        "            if self.heard_at < asked_at and not self.is_over:\n",
        "            if False:\n",
    ),
    _mutant(
        "the engine is not given the time",
        "connection.py",
        "        self.engine.pass_time(now=self._clock.monotonic())\n",
        "",
    ),
    _mutant(
        "writing does not go on after the network was full",
        "connection.py",
        "        if not is_full:\n            self.flush()\n",
        "",
    ),
    _mutant(
        "a lost connection is used again",
        "connections.py",
        "        self._held = [held for held in self._held if not held.connection.is_over]\n",
        "",
    ),
    _mutant(
        "tokens are renewed after they have expired",
        "tokens.py",
        "RENEWED_AFTER: Final = 0.85",
        "RENEWED_AFTER: Final = 1.5",
    ),
    _mutant(
        "a token that could not be renewed is not tried again",
        "tokens.py",
        "            self._renew_at[path] = now + RETRY_S\n",
        "            del self._renew_at[path]\n",
    ),
    # -- receiving -------------------------------------------------------------------------------------------------
    _mutant(
        "a session is reopened silently",
        "receiver.py",
        "        if self._was_accepted:\n            raise self._session_lost()\n",
        "",
    ),
    _mutant(
        "an unanswered drain is waited for by the next call",
        "inbox.py",
        "            elif link.credit < count or self._drain is not None:\n",
        "            elif link.credit < count and self._drain is None:\n",
    ),
    _mutant(
        "a drain takes back more than was asked for",
        "inbox.py",
        "        drain, self._drain = self._drain, None\n        if drain is not None and not drain.done():\n            drain.set_result(None)\n        arrival = self._arrival\n",
        "        drain, self._drain = self._drain, None\n        if drain is not None and not drain.done():\n            drain.set_result(None)\n        arrival = None\n",
    ),
    _mutant(
        "a cancelled call discards what has come",
        "inbox.py",
        "        except asyncio.CancelledError:\n",
        "        except asyncio.CancelledError:\n            self._queue.clear()\n",
    ),
    _mutant(
        "what comes between two calls is released",
        "inbox.py",
        "        self._queue.append(delivery)\n",
        "        if arrival is None and self._is_locking:\n            self._release([delivery])\n            return\n        self._queue.append(delivery)\n",
    ),
    _mutant(
        "close gives nothing back",
        "inbox.py",
        "            end.link.settle_many(mine, RELEASED, settled=True)\n        self._queue.clear()\n",
        "            pass\n        self._queue.clear()\n",
    ),
    _mutant(
        "deleted messages are dropped when the link is lost",
        "inbox.py",
        "        self._end = None\n        if self._is_locking:\n            self._queue.clear()\n",
        "        self._end = None\n        if True:\n            self._queue.clear()\n",
    ),
    _mutant(
        "prefetched messages are never replaced",
        "inbox.py",
        "end is not None and end.link.credit <= room // 2:\n",
        "end is not None and end.link.credit < 0:\n",
    ),
    _mutant(
        "a receiver that has released everything fetches nothing",
        "inbox.py",
        "                self._keep_prefetching()  # what was fetched may have been released since\n",
        "                pass\n",
    ),
    _mutant(
        "too much credit is granted",
        "inbox.py",
        "                link.grant(max(count, link.credit))\n",
        "                link.grant(max(count, link.credit) + 1)\n",
    ),
    # -- settling --------------------------------------------------------------------------------------------------
    _mutant(
        "the wrong delivery is settled",
        "settlements.py",
        "            self._link.settle_many(together, state, settled=False)\n",
        "            oldest = [*self._link.unsettled.values()][: len(together)]\n            self._link.settle_many(oldest, state, settled=False)\n",
    ),
    _mutant(
        "a settlement is done when it is written",
        "settlements.py",
        "                settling.has_left = True\n",
        "                settling.has_left = True\n                settling.finish()\n",
    ),
    _mutant(
        "a refused settlement counts as done",
        "settlements.py",
        "                settling.answered(delivery, refusal_of(settling.doing, outcome))\n",
        "                settling.answered(delivery, None)\n",
    ),
    _mutant(
        "a settlement in doubt is reported as not done",
        "settlements.py",
        "            settling.fail(own_error(error, is_in_doubt=settling.has_left))\n",
        "            settling.fail(own_error(error, is_in_doubt=False))\n",
    ),
    _mutant(
        "settlements of a lost link wait for their deadline",
        "settlements.py",
        "            settling.fail(own_error(error, is_in_doubt=settling.has_left))\n",
        "            pass\n",
    ),
    _mutant(
        "dead-lettering loses its reason",
        "settlements.py",
        "                DEAD_LETTER_REASON: settlement.reason,\n",
        "",
    ),
    _mutant(
        "abandoned messages are deferred",
        "settlements.py",
        "            return _ABANDONED\n",
        "            return _DEFERRED\n",
    ),
    _mutant(
        "a message is settled outside of the transaction",
        "receiver.py",
        "Settling([delivery], in_transaction(outcome, state), deadline, doing)",
        "Settling([delivery], outcome, deadline, doing)",
    ),
    _mutant(
        "a token of a lost link completes what should be abandoned",
        "managed_receiver.py",
        '    SettleMode.ABANDON: "abandoned",\n',
        '    SettleMode.ABANDON: "completed",\n',
    ),
    _mutant(
        "the doubt of the first settlement is forgotten by the second",
        "receiver.py",
        "            error.is_in_doubt = error.is_in_doubt or in_doubt\n",
        "            pass\n",
    ),
    # -- requests --------------------------------------------------------------------------------------------------
    _mutant(
        "a reply answers the oldest request",
        "requests.py",
        "        request = self._waiting.get(key)\n",
        "        request = next(iter(self._waiting.values()), None)\n",
    ),
    _mutant(
        "a lost request is reported as not sent",
        "requests.py",
        "                request.fail(own_error(cause, is_in_doubt=True))\n",
        "                request.fail(own_error(cause, is_in_doubt=False))\n",
    ),
    _mutant(
        "a request that was accepted waits for its reply after the link is lost",
        "requests.py",
        "            if request.has_left:  # also those",
        "            if False:  # also those",
    ),
    _mutant(
        "a locked message is renewed by one request for all and all fail together",
        "renewals.py",
        "            if len(waiting) == 1:\n                waiting[0].fail(error)\n                return\n",
        "            for renewal in waiting:\n                renewal.fail(error)\n            return\n",
    ),
    _mutant(
        "requests of a session go without its link",
        "managed_receiver.py",
        "            link_name=None if end is None else end.link.name,\n            wire=",
        "            link_name=None,\n            wire=",
    ),
    # -- transactions ----------------------------------------------------------------------------------------------
    _mutant(
        "a commit that was not answered counts as done",
        "transactions.py",
        "        await self._owner.control_of(self._wire).discharge(self._state.txn_id, fail=False, deadline=deadline)\n",
        "        try:\n            await self._owner.control_of(self._wire).discharge(self._state.txn_id, fail=False, deadline=deadline)\n        except (ServiceBusConnectionError, OperationTimeoutError):\n            return\n",
    ),
    _mutant(
        "a commit after the connection was lost counts as done",
        "transactions.py",
        "            lost.is_in_doubt = False\n            raise lost\n",
        "            return\n",
    ),
    _mutant(
        "a transaction moves to another connection",
        "transactions.py",
        "        if wire is not self._wire:\n",
        "        if False:\n",
    ),
    _mutant(
        "a transfer of a transaction leaves on any connection",
        "sender.py",
        "            transfer.wire = end.wire\n",
        "",
    ),
    _mutant(
        "a rollback is sent as a commit",
        "transactions.py",
        "discharge(self._state.txn_id, fail=True, deadline=deadline)",
        "discharge(self._state.txn_id, fail=False, deadline=deadline)",
    ),
    _mutant(
        "a send of a transaction goes without its state",
        "sender.py",
        "            transfer.state = await transaction_of(transaction).state_on(end.wire, transfer.deadline)\n",
        "            await transaction_of(transaction).state_on(end.wire, transfer.deadline)\n",
    ),
)
"""Bugs that no user may meet."""
