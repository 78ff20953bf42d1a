// @azure/service-bus against the emulator: one line "ok <check>" or "failed <check> <why>" each.
//
// Usage: node checks.js <connection string> <host:port> <plain|tls|websocket>, with NODE_EXTRA_CA_CERTS.
//
// The line "outage" asks the caller to reset all connections; the caller answers with a line.
"use strict";

const assert = require("node:assert/strict");
const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");

const [text, address, mode] = process.argv.slice(2);
const secure = text.replace("UseDevelopmentEmulator=true;", "");
const options = { retryOptions: { maxRetries: 2, retryDelayInMs: 200, timeoutInMs: 20000 } };
if (mode !== "plain") options.customEndpointAddress = `sb://${address}`;
if (mode === "websocket") options.webSocketOptions = { webSocket: require("ws") };
const client = new ServiceBusClient(mode === "plain" ? text : secure, options);
const manager = new ServiceBusAdministrationClient(secure);
const createSender = (path) => client.createSender(path);

async function several(receiver, count) {
  const got = [];
  while (got.length < count) {
    const batch = await receiver.receiveMessages(count - got.length, { maxWaitTimeInMs: 10000 });
    assert.ok(batch.length, `${got.length} of ${count} came`);
    got.push(...batch);
  }
  return got;
}

const checks = {
  async settlements() {
    const sender = createSender("node-queue");
    const receiver = client.createReceiver("node-queue");
    await sender.sendMessages([..."0123"].map((body) => ({ body, applicationProperties: { n: Number(body) } })));
    const messages = await several(receiver, 4);
    assert.deepEqual(messages.map((each) => each.body), ["0", "1", "2", "3"]);
    assert.equal(messages[2].applicationProperties.n, 2);
    await receiver.completeMessage(messages[0]);
    await receiver.abandonMessage(messages[1]);
    await receiver.deferMessage(messages[2]);
    await receiver.deadLetterMessage(messages[3], { deadLetterReason: "r", deadLetterErrorDescription: "d" });
    const [again] = await several(receiver, 1);
    assert.equal(again.body, "1");
    assert.equal(again.deliveryCount, 1);
    await receiver.renewMessageLock(again);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(messages[2].sequenceNumber);
    await receiver.completeMessage(deferred);
    const dead = client.createReceiver("node-queue", { subQueueType: "deadLetter" });
    const [letter] = await several(dead, 1);
    assert.equal(letter.deadLetterReason, "r");
    assert.equal(letter.deadLetterErrorDescription, "d");
    await dead.completeMessage(letter);
    assert.deepEqual(await receiver.peekMessages(5, { fromSequenceNumber: messages[0].sequenceNumber }), []);
  },

  async bodies() {
    const sender = createSender("node-bodies");
    const receiver = client.createReceiver("node-bodies");
    const body = { text: "ü", list: [1, 2.5, null], nested: { yes: true } };
    await sender.sendMessages({ body, subject: "s", correlationId: "c", timeToLive: 60000 });
    const [message] = await several(receiver, 1);
    assert.deepEqual(message.body, body);
    assert.equal(message.subject, "s");
    assert.equal(message.correlationId, "c");
    assert.equal(message.timeToLive, 60000);
    await receiver.completeMessage(message);
    await sender.sendMessages({ body: Buffer.alloc(200000, 7) });
    const [large] = await several(receiver, 1);
    assert.equal(large.body.length, 200000);
    await receiver.completeMessage(large);
  },

  async schedule() {
    const sender = createSender("node-schedule");
    const receiver = client.createReceiver("node-schedule");
    const [first] = await sender.scheduleMessages([{ body: "a" }, { body: "later" }], new Date(Date.now() + 3600000));
    await sender.cancelScheduledMessages(first);
    await sender.scheduleMessages([{ body: "b" }], new Date(Date.now() + 1000));
    const [message] = await several(receiver, 1);
    assert.equal(message.body, "b");
    await receiver.completeMessage(message);
  },

  async sessions() {
    const sender = createSender("node-sessions");
    await sender.sendMessages([{ body: "1", sessionId: "a" }, { body: "2", sessionId: "a" }]);
    const receiver = await client.acceptNextSession("node-sessions");
    assert.equal(receiver.sessionId, "a");
    await receiver.setSessionState({ half: "way" });
    assert.deepEqual(await receiver.getSessionState(), { half: "way" });
    await receiver.renewSessionLock();
    await assert.rejects(client.acceptSession("node-sessions", "a"), { code: "SessionCannotBeLocked" });
    for (const message of await several(receiver, 2)) await receiver.completeMessage(message);
    await receiver.close();
    const again = await client.acceptSession("node-sessions", "a");
    assert.deepEqual(await again.getSessionState(), { half: "way" });
    await again.close();
  },

  async rules() {
    const rules = client.createRuleManager("node-topic", "s");
    const named = async () => {
      const found = [];
      for await (const rule of rules.listRules()) found.push(rule);
      return found;
    };
    assert.deepEqual((await named()).map((rule) => rule.name), ["$Default"]);
    await rules.deleteRule("$Default");
    await rules.createRule("sql", { sqlExpression: "n = 2" }, { sqlExpression: "SET m = 3" });
    await rules.createRule("label", { subject: "red", applicationProperties: { k: "v" } });
    const [label, sql] = (await named()).sort((a, b) => a.name.localeCompare(b.name));
    assert.equal(sql.filter.sqlExpression, "n = 2");
    assert.equal(sql.action.sqlExpression, "SET m = 3");
    assert.equal(label.filter.subject, "red");
    assert.deepEqual(label.filter.applicationProperties, { k: "v" });
    const sender = createSender("node-topic");
    await sender.sendMessages([{ body: "no" }, { body: "yes", applicationProperties: { n: 2 } }]);
    const receiver = client.createReceiver("node-topic", "s");
    const [message] = await several(receiver, 1);
    assert.equal(message.body, "yes");
    assert.equal(message.applicationProperties.m, 3);
    await receiver.completeMessage(message);
  },

  async deletes() {
    const sender = createSender("node-delete");
    const receiver = client.createReceiver("node-delete", { receiveMode: "receiveAndDelete" });
    await sender.sendMessages(["a", "b", "c"].map((body) => ({ body })));
    assert.deepEqual((await several(receiver, 3)).map((each) => each.body), ["a", "b", "c"]);
  },

  async subscribe() {
    const sender = createSender("node-subscribe");
    const receiver = client.createReceiver("node-subscribe");
    const bodies = [];
    const done = new Promise((resolve, reject) => {
      receiver.subscribe({
        processMessage: async (message) => { if (bodies.push(message.body) === 10) resolve(); },
        processError: async (args) => reject(args.error),
      }, { maxConcurrentCalls: 3 });
    });
    await sender.sendMessages([...Array(10).keys()].map((body) => ({ body })));
    await done;
    assert.deepEqual([...bodies].sort((a, b) => a - b), [...Array(10).keys()]);
    await receiver.close();
  },

  async properties() {
    const receiver = client.createReceiver("node-properties");
    await createSender("node-properties").sendMessages({ body: "x" });
    const [message] = await several(receiver, 1);
    assert.ok(message.messageId);
    await receiver.abandonMessage(message, { why: "later" });
    const [again] = await several(receiver, 1);
    assert.equal(again.applicationProperties.why, "later");
    await receiver.deadLetterMessage(again, { deadLetterReason: "r", why: "bad" });
    const dead = client.createReceiver("node-properties", { subQueueType: "deadLetter" });
    const [letter] = await several(dead, 1);
    assert.equal(letter.applicationProperties.why, "bad");
    await dead.completeMessage(letter);
  },

  async administration() {
    await manager.createTopic("Node/Topic");
    await manager.createSubscription("Node/Topic", "Sub", { maxDeliveryCount: 3 });
    const subscription = await manager.getSubscription("Node/Topic", "Sub");
    assert.equal(subscription.topicName, "Node/Topic");
    assert.equal(subscription.maxDeliveryCount, 3);
    await manager.createRule("Node/Topic", "Sub", "Red", { applicationProperties: { colour: "red" } });
    const rule = await manager.getRule("Node/Topic", "Sub", "Red");
    assert.deepEqual(rule.filter.applicationProperties, { colour: "red" });
    const names = [];
    for await (const each of manager.listRules("Node/Topic", "Sub")) names.push(each.name);
    assert.deepEqual(names, ["$Default", "Red"]);
    const found = [];
    for await (const each of manager.listSubscriptionsRuntimeProperties("Node/Topic")) found.push(each.subscriptionName);
    assert.deepEqual(found, ["Sub"]);
    await assert.rejects(manager.createTopic("Node/Topic"), { code: "MessageEntityAlreadyExistsError" });
    await assert.rejects(manager.getQueue("node-missing"), { code: "MessageEntityNotFoundError" });
    assert.equal(await manager.topicExists("Node/Topic"), true);
    await manager.deleteTopic("Node/Topic");
    assert.equal(await manager.topicExists("Node/Topic"), false);
  },

  async refusals() {
    await assert.rejects(createSender("missing").sendMessages({ body: "x" }), { code: "MessagingEntityNotFound" });
    await assert.rejects(createSender("node-sessions").sendMessages({ body: "no session" }));
  },
};

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const collected = async (pages) => { const found = []; for await (const each of pages) found.push(each); return found; };

/** Create a queue of a check; the checks run side by side. */
async function queue(name, settings = {}) {
  const path = `node-${name}`;
  await manager.createQueue(path, settings);
  return { path, sender: createSender(path), receiver: settings.requiresSession ? undefined : client.createReceiver(path) };
}

Object.assign(checks, {
  async peeks() {
    const { sender, receiver } = await queue("peeks");
    await sender.sendMessages(["a", "b"].map((body) => ({ body })));
    await sender.scheduleMessages({ body: "c" }, new Date(Date.now() + 3600000));
    const [first] = await several(receiver, 1);
    await receiver.deferMessage(first);
    const peeked = await receiver.peekMessages(10);
    assert.deepEqual(peeked.map((each) => [each.body, each.state]), [["a", "deferred"], ["b", "active"], ["c", "scheduled"]]);
    assert.deepEqual(await receiver.peekMessages(10), []);
    const [again] = await receiver.peekMessages(1, { fromSequenceNumber: peeked[1].sequenceNumber });
    assert.equal(again.body, "b");
    await assert.rejects(receiver.completeMessage(again), /not supported for peeked messages/);
  },

  async batches() {
    const { sender, receiver } = await queue("batches");
    const batch = await sender.createMessageBatch({ maxSizeInBytes: 5000 });
    let count = 0;
    while (batch.tryAddMessage({ body: Buffer.alloc(500), messageId: `m${count}` })) count += 1;
    assert.equal(batch.count, count);
    assert.ok(count > 5 && count < 10 && batch.sizeInBytes <= 5000);
    await sender.sendMessages(batch);
    assert.deepEqual((await several(receiver, count)).map((each) => each.messageId), [...Array(count).keys()].map((n) => `m${n}`));
    await assert.rejects(sender.createMessageBatch({ maxSizeInBytes: 2 ** 40 }));
    await assert.rejects(sender.sendMessages({ body: Buffer.alloc(300000) }), { code: "MessageSizeExceeded" });
  },

  async waits() {
    const { receiver } = await queue("waits");
    const begun = Date.now();
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 1500 }), []);
    assert.ok(Date.now() - begun < 60000);
  },

  async lockLost() {
    const { sender, receiver } = await queue("lock", { lockDuration: "PT5S" });
    await sender.sendMessages({ body: "x" });
    const kept = client.createReceiver("node-lock", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await several(kept, 1);
    const until = message.lockedUntilUtc.getTime() - message.enqueuedTimeUtc.getTime();
    assert.ok(until >= 5000 && until < 60000, String(until));
    await later(6000);
    await assert.rejects(kept.completeMessage(message), { code: "MessageLockLost" });
    await assert.rejects(kept.renewMessageLock(message), { code: "MessageLockLost" });
    const [again] = await several(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    await receiver.completeMessage(again);
  },

  async renewal() {
    const { sender, receiver } = await queue("renewal", { lockDuration: "PT5S" });
    await sender.sendMessages({ body: "x" });
    const [message] = await several(receiver, 1);
    await later(8000);
    await receiver.completeMessage(message);
    assert.deepEqual(await receiver.peekMessages(1), []);
  },

  async sessionLockLost() {
    const { path, sender } = await queue("session-lock", { lockDuration: "PT5S", requiresSession: true });
    await sender.sendMessages({ body: "x", sessionId: "s" });
    const receiver = await client.acceptSession(path, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await several(receiver, 1);
    await later(6500);
    await assert.rejects(receiver.completeMessage(message), { code: "SessionLockLost" });
    const again = await client.acceptSession(path, "s");
    const [second] = await several(again, 1);
    assert.equal(second.deliveryCount, 1);
    await again.completeMessage(second);
    await again.close();
  },

  async deferred() {
    const { path, sender, receiver } = await queue("deferred");
    await sender.sendMessages([..."abc"].map((body) => ({ body })));
    const messages = await several(receiver, 3);
    for (const each of messages) await receiver.deferMessage(each, { step: 1 });
    const numbers = messages.map((each) => each.sequenceNumber);
    const [a, b, c] = await receiver.receiveDeferredMessages(numbers);
    assert.equal(a.applicationProperties.step, 1);
    await receiver.abandonMessage(a, { step: 2 });
    await receiver.deadLetterMessage(b, { deadLetterReason: "why", deadLetterErrorDescription: "because" });
    await receiver.deferMessage(c);
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
    const again = await receiver.receiveDeferredMessages([numbers[0], numbers[2]]);
    assert.deepEqual(again.map((each) => [each.body, each.applicationProperties.step]), [["a", 2], ["c", 1]]);
    for (const each of again) await receiver.completeMessage(each);
    await assert.rejects(receiver.receiveDeferredMessages(numbers[0]), { code: "MessageNotFound" });
    const dead = client.createReceiver(path, { subQueueType: "deadLetter" });
    const [letter] = await several(dead, 1);
    assert.equal(letter.deadLetterReason, "why");
    await dead.completeMessage(letter);
  },

  async backup() {
    // A receiver whose link is closed settles over the management link.
    const { sender, receiver: first } = await queue("backup");
    await sender.sendMessages([..."01234"].map((body) => ({ body })));
    const messages = await several(first, 5);
    await first.close();
    const receiver = client.createReceiver("node-backup");
    const until = messages[0].lockedUntilUtc;
    assert.ok((await receiver.renewMessageLock(messages[0])) > until);
    await receiver.completeMessage(messages[0]);
    await receiver.abandonMessage(messages[1], { why: "later" });
    await receiver.deferMessage(messages[2], { why: "aside" });
    await receiver.deadLetterMessage(messages[3], { deadLetterReason: "r", deadLetterErrorDescription: "d", why: "bad" });
    await receiver.completeMessage(messages[4]);
    const [again] = await several(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount, again.applicationProperties.why], ["1", 1, "later"]);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(messages[2].sequenceNumber);
    assert.deepEqual([deferred.body, deferred.applicationProperties.why], ["2", "aside"]);
    await receiver.completeMessage(deferred);
    const dead = client.createReceiver("node-backup", { subQueueType: "deadLetter" });
    const [letter] = await several(dead, 1);
    assert.deepEqual([letter.body, letter.deadLetterReason, letter.applicationProperties.why], ["3", "r", "bad"]);
    await receiver.completeMessage(letter);
    assert.deepEqual(await receiver.peekMessages(5, { fromSequenceNumber: messages[0].sequenceNumber }), []);
    assert.deepEqual(await dead.peekMessages(5), []);
  },

  async unlocked() {
    // Receive and delete: nothing to settle, for messages and for deferred messages, with and without sessions.
    const receive = (path, receiveMode) => path === "node-unlocked-sessions"
      ? client.acceptSession(path, "a", { receiveMode }) : client.createReceiver(path, { receiveMode });
    await queue("unlocked");
    await queue("unlocked-sessions", { requiresSession: true });
    for (const path of ["node-unlocked", "node-unlocked-sessions"]) {
      await createSender(path).sendMessages(["defer", "now"].map((body) => ({ body, sessionId: "a" })));
      const locking = await receive(path, "peekLock");
      const [early] = await several(locking, 1);
      await locking.deferMessage(early);
      await locking.close();
      const receiver = await receive(path, "receiveAndDelete");
      const got = [...await several(receiver, 1), ...await receiver.receiveDeferredMessages(early.sequenceNumber)];
      assert.deepEqual(got.map((each) => [each.body, each.deliveryCount]), [["now", 0], ["defer", 1]]);
      for (const message of got) {
        assert.equal(message.lockToken, undefined);
        for (const way of ["complete", "abandon", "defer", "deadLetter"]) await assert.rejects(receiver[`${way}Message`](message));
      }
      assert.deepEqual(await receiver.peekMessages(5, { fromSequenceNumber: early.sequenceNumber }), []);
      await receiver.close();
    }
  },

  async failingHandler() {
    const { sender, receiver } = await queue("handler");
    const counts = [], sources = [];
    const done = new Promise((resolve) => receiver.subscribe({
      processMessage: async (message) => { counts.push(message.deliveryCount); if (counts.length === 1) throw new Error("mine"); resolve(); },
      processError: async (args) => { sources.push(args.errorSource); },
    }));
    await sender.sendMessages({ body: "x" });
    await done;
    await later(300);
    await receiver.close();
    assert.deepEqual([counts, sources], [[0, 1], ["processMessageCallback"]]);
  },

  async manualCompletion() {
    const { sender, receiver } = await queue("manual");
    await sender.sendMessages([...Array(20).keys()].map((body) => ({ body })));
    let active = 0, most = 0, seen = 0;
    await new Promise((resolve, reject) => receiver.subscribe({
      processMessage: async (message) => {
        most = Math.max(most, ++active);
        await later(20);
        await receiver.completeMessage(message);
        active -= 1;
        if (++seen === 20) resolve();
      },
      processError: async (args) => reject(args.error),
    }, { autoCompleteMessages: false, maxConcurrentCalls: 4 }));
    assert.equal(most, 4);
    await receiver.close();
    assert.ok(receiver.isClosed);
    await assert.rejects(receiver.receiveMessages(1));
  },

  async sessionReceivers() {
    const { path, sender } = await queue("session-receivers", { requiresSession: true });
    await sender.sendMessages([..."abc"].flatMap((id) => [1, 2].map((body) => ({ body, sessionId: id }))));
    const ids = [];
    for (let index = 0; index < 3; index += 1) {
      const receiver = await client.acceptNextSession(path);
      ids.push(receiver.sessionId);
      assert.ok(receiver.sessionLockedUntilUtc.getTime() > Date.now());
      assert.deepEqual((await receiver.peekMessages(5)).map((each) => each.sessionId), [receiver.sessionId, receiver.sessionId]);
      const messages = await several(receiver, 2);
      assert.deepEqual(messages.map((each) => each.body), [1, 2]);
      await receiver.deferMessage(messages[0]);
      const [deferred] = await receiver.receiveDeferredMessages(messages[0].sequenceNumber);
      for (const each of [deferred, messages[1]]) await receiver.completeMessage(each);
      assert.ok(!(await receiver.getSessionState()));
      await receiver.setSessionState("text");
      assert.equal(await receiver.getSessionState(), "text");
      await receiver.setSessionState(null);
      assert.ok(!(await receiver.getSessionState()));
      await receiver.close();
    }
    assert.deepEqual(ids, ["a", "b", "c"]);
    const impatient = new ServiceBusClient(mode === "plain" ? text : secure, { ...options, retryOptions: { maxRetries: 0, timeoutInMs: 2000 } });
    await assert.rejects(impatient.acceptNextSession(path), { code: /ServiceTimeout|SessionCannotBeLocked/ });
    await impatient.close();
  },

  async sessionStream() {
    const { path, sender } = await queue("session-stream", { requiresSession: true });
    await sender.sendMessages([...Array(5).keys()].map((body) => ({ body, sessionId: "s" })));
    const receiver = await client.acceptSession(path, "s");
    const bodies = [];
    await new Promise((resolve, reject) => receiver.subscribe({
      processMessage: async (message) => { if (bodies.push(message.body) === 5) resolve(); },
      processError: async (args) => reject(args.error),
    }));
    assert.deepEqual(bodies, [0, 1, 2, 3, 4]);
    await later(500); // the last one is completed after its handler
    await receiver.close();
    assert.equal((await manager.getQueueRuntimeProperties(path)).totalMessageCount, 0);
  },

  async wrongReceivers() {
    const plain = await queue("plain-entity"), visits = await queue("visits", { requiresSession: true });
    await assert.rejects(client.acceptSession(plain.path, "s"), { code: "SessionCannotBeLocked" }); // the SDK sees no session in the attach
    await assert.rejects(client.createReceiver(visits.path).receiveMessages(1), /InvalidOperationError/);
    await assert.rejects(client.createReceiver("node-nothing").receiveMessages(1), { code: "MessagingEntityNotFound" });
    await assert.rejects(client.createReceiver("node-nothing").peekMessages(1), { code: "MessagingEntityNotFound" });
    await assert.rejects(client.acceptNextSession("node-nothing"), { code: "MessagingEntityNotFound" });
  },

  async filters() {
    await manager.createTopic("node-filters");
    const sender = createSender("node-filters");
    const filters = {
      sql: { sqlExpression: "n >= 2 AND colour LIKE 'r%'" },
      typed: { sqlExpression: "n = @n", sqlParameters: { "@n": 3 } },
      correlation: { correlationId: "c", applicationProperties: { colour: "blue" } },
      none: { sqlExpression: "1=0" },
      all: { sqlExpression: "1=1" },
    };
    for (const [name, filter] of Object.entries(filters)) {
      await manager.createSubscription("node-filters", name, { defaultRuleOptions: { name: "only", filter } });
    }
    await sender.sendMessages([
      { body: 1, applicationProperties: { n: 2, colour: "red" } },
      { body: 2, applicationProperties: { n: 3, colour: "blue" }, correlationId: "c" },
      { body: 3, applicationProperties: { colour: "blue" }, correlationId: "d" },
    ]);
    const wanted = { sql: [1], typed: [2], correlation: [2], none: [], all: [1, 2, 3] };
    for (const [name, bodies] of Object.entries(wanted)) {
      const receiver = client.createReceiver("node-filters", name, { receiveMode: "receiveAndDelete" });
      const found = bodies.length ? await several(receiver, bodies.length) : await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 });
      assert.deepEqual(found.map((each) => each.body), bodies, name);
    }
  },

  async annotated() {
    const { sender, receiver } = await queue("annotated");
    const values = { text: "ü", whole: 5, part: 2.5, yes: true, no: null, at: new Date(1700000000000) };
    await sender.sendMessages({ body: "x", contentType: "text/plain", replyTo: "r", to: "t", replyToSessionId: "q", applicationProperties: values });
    const [message] = await several(receiver, 1);
    assert.deepEqual({ ...message.applicationProperties, no: message.applicationProperties.no ?? null }, { ...values, at: values.at.getTime() });
    assert.deepEqual([message.contentType, message.replyTo, message.to, message.replyToSessionId], ["text/plain", "r", "t", "q"]);
    await receiver.completeMessage(message);
    for (const [bodyType, body] of [["value", { a: [1, "x"] }], ["sequence", [[1, 2], [3]]], ["data", Buffer.from("raw")]]) {
      await sender.sendMessages({ body, bodyType, applicationProperties: { p: 1 }, messageAnnotations: { own: "note" }, footer: { f: 1 }, header: { durable: true, priority: 3 }, properties: { subject: "s" } });
      const [raw] = await several(receiver, 1);
      const annotated = raw._rawAmqpMessage;
      assert.equal(annotated.bodyType, bodyType);
      assert.deepEqual(raw.body, body);
      assert.equal(annotated.messageAnnotations.own, "note");
      assert.equal(annotated.properties.subject, "s");
      await receiver.completeMessage(raw);
    }
  },

  async lives() {
    const { path, sender } = await queue("lives", { deadLetteringOnMessageExpiration: true, maxDeliveryCount: 2 });
    const receiver = client.createReceiver(path), dead = client.createReceiver(path, { subQueueType: "deadLetter" });
    await sender.sendMessages({ body: "short", timeToLive: 1000 });
    await later(1500);
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
    await sender.sendMessages({ body: "poison" });
    for (const count of [0, 1]) {
      const [message] = await several(receiver, 1);
      assert.equal(message.deliveryCount, count);
      await receiver.abandonMessage(message);
    }
    const letters = await several(dead, 2);
    assert.deepEqual(letters.map((each) => [each.body, each.deadLetterReason]), [["short", "TTLExpiredException"], ["poison", "MaxDeliveryCountExceeded"]]);
  },

  async duplicates() {
    const { sender, receiver } = await queue("duplicates", { requiresDuplicateDetection: true });
    for (const messageId of ["1", "1", "2"]) await sender.sendMessages({ body: messageId, messageId });
    assert.deepEqual((await several(receiver, 2)).map((each) => each.body), ["1", "2"]);
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  },

  async forwarding() {
    const end = await queue("forward-end");
    const first = await queue("forward-first", { forwardTo: end.path, forwardDeadLetteredMessagesTo: end.path });
    const description = await manager.getQueue(first.path);
    assert.ok(description.forwardTo.endsWith(`/${end.path}`) && description.forwardDeadLetteredMessagesTo.endsWith(`/${end.path}`));
    await first.sender.sendMessages({ body: "x" });
    const [message] = await several(end.receiver, 1);
    assert.equal(message.body, "x");
    await end.receiver.completeMessage(message);
    await assert.rejects(client.createReceiver(first.path).receiveMessages(1), /InvalidOperationError.*forwards/);
  },

  async disabled() {
    const { path, sender } = await queue("disabled");
    await sender.sendMessages({ body: "x" });
    await manager.updateQueue({ ...(await manager.getQueue(path)), status: "SendDisabled" });
    await assert.rejects(createSender(path).sendMessages({ body: "y" }), { code: "MessagingEntityDisabled" });
    const [message] = await several(client.createReceiver(path, { receiveMode: "receiveAndDelete" }), 1);
    assert.equal(message.body, "x");
  },

  async queueSettings() {
    const given = {
      lockDuration: "PT45S", maxSizeInMegabytes: 2048, requiresDuplicateDetection: true, requiresSession: true,
      defaultMessageTimeToLive: "P2D", deadLetteringOnMessageExpiration: true, duplicateDetectionHistoryTimeWindow: "PT2M",
      maxDeliveryCount: 8, enableBatchedOperations: false, autoDeleteOnIdle: "PT1H", enablePartitioning: false,
      status: "ReceiveDisabled", userMetadata: "some <text> & more",
      authorizationRules: [{ claimType: "SharedAccessKey", accessRights: ["Send", "Listen"], keyName: "rule", primaryKey: Buffer.alloc(32, 1).toString("base64"), secondaryKey: Buffer.alloc(32, 2).toString("base64") }],
    };
    const created = await manager.createQueue("node-settings", given);
    for (const found of [created, await manager.getQueue("node-settings")]) {
      for (const [name, value] of Object.entries(given)) {
        if (name !== "authorizationRules") assert.deepEqual(found[name], value, name);
      }
      assert.deepEqual(found.authorizationRules.map((each) => [each.keyName, [...each.accessRights].sort()]), [["rule", ["Listen", "Send"]]]);
    }
    const updated = await manager.updateQueue({ ...created, lockDuration: "PT1M", maxDeliveryCount: 3, status: "Active", userMetadata: "new" });
    assert.deepEqual([updated.lockDuration, updated.maxDeliveryCount, updated.status, updated.userMetadata], ["PT1M", 3, "Active", "new"]);
    await assert.rejects(manager.createQueue("node-settings"), { code: "MessageEntityAlreadyExistsError" });
    await assert.rejects(manager.createQueue("node-invalid", { lockDuration: "PT10M" }), { statusCode: 400 });
    await assert.rejects(manager.updateQueue({ ...created, name: "node-nothing" }));
    await assert.rejects(manager.deleteQueue("node-nothing"), { code: "MessageEntityNotFoundError" });
  },

  async topicSettings() {
    const given = {
      defaultMessageTimeToLive: "P3D", maxSizeInMegabytes: 3072, requiresDuplicateDetection: true, duplicateDetectionHistoryTimeWindow: "PT3M",
      enableBatchedOperations: false, status: "Active", userMetadata: "t", supportOrdering: true, autoDeleteOnIdle: "PT2H", enablePartitioning: false,
    };
    const created = await manager.createTopic("node-settings-topic", given);
    for (const [name, value] of Object.entries(given)) assert.deepEqual(created[name], value, name);
    const wanted = {
      lockDuration: "PT50S", requiresSession: true, defaultMessageTimeToLive: "P1D", deadLetteringOnMessageExpiration: true,
      deadLetteringOnFilterEvaluationExceptions: false, maxDeliveryCount: 7, enableBatchedOperations: false, autoDeleteOnIdle: "PT30M", userMetadata: "s", status: "ReceiveDisabled",
    };
    const subscription = await manager.createSubscription("node-settings-topic", "s", wanted);
    for (const [name, value] of Object.entries(wanted)) assert.deepEqual(subscription[name], value, name);
    const again = await manager.updateSubscription({ ...subscription, maxDeliveryCount: 2, status: "Active" });
    assert.deepEqual([again.maxDeliveryCount, again.status], [2, "Active"]);
    const filter = { correlationId: "c", subject: "l", to: "t", replyTo: "r", replyToSessionId: "rs", sessionId: "s", messageId: "m", contentType: "ct", applicationProperties: { text: "x", n: 5, yes: true, at: new Date(1700000000000) } };
    await manager.createRule("node-settings-topic", "s", "all", filter);
    assert.deepEqual((await manager.getRule("node-settings-topic", "s", "all")).filter, filter);
    const rule = await manager.createRule("node-settings-topic", "s", "sql", { sqlExpression: "a = @p", sqlParameters: { "@p": "v" } }, { sqlExpression: "SET b = 1" });
    assert.deepEqual([rule.filter.sqlParameters, rule.action.sqlExpression], [{ "@p": "v" }, "SET b = 1"]);
    await manager.updateRule("node-settings-topic", "s", { ...rule, filter: { sqlExpression: "a = 2" }, action: {} });
    assert.equal((await manager.getRule("node-settings-topic", "s", "sql")).filter.sqlExpression, "a = 2");
    await manager.deleteRule("node-settings-topic", "s", "sql");
    assert.equal(await manager.ruleExists("node-settings-topic", "s", "sql"), false);
    await assert.rejects(manager.createRule("node-settings-topic", "s", "bad", { sqlExpression: "not sql (" }), { statusCode: 400 });
  },

  async pages() {
    for (let index = 0; index < 7; index += 1) await manager.createTopic(`node-pages/${index}`);
    const names = [];
    for await (const page of manager.listTopics().byPage({ maxPageSize: 3 })) {
      assert.ok(page.length <= 3);
      names.push(...page.map((each) => each.name));
    }
    names.push(...(await collected(manager.listTopicsRuntimeProperties())).map((each) => each.name));
    // The other checks create topics meanwhile.
    const own = [...Array(7).keys()].map((index) => `node-pages/${index}`);
    assert.deepEqual(names.filter((name) => name.startsWith("node-pages/")), [...own, ...own]);
  },

  async counts() {
    const { path, sender, receiver } = await queue("counts");
    await sender.sendMessages([..."abc"].map((body) => ({ body })));
    await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3600000));
    const [message] = await several(receiver, 1);
    await receiver.deadLetterMessage(message);
    const found = await manager.getQueueRuntimeProperties(path);
    assert.deepEqual([found.activeMessageCount, found.deadLetterMessageCount, found.scheduledMessageCount, found.totalMessageCount], [2, 1, 1, 4]);
    assert.ok(found.sizeInBytes > 0 && found.createdAt <= found.accessedAt);
    const namespace = await manager.getNamespaceProperties();
    assert.deepEqual([namespace.name, namespace.messagingSku], ["contoso", "Standard"]);
  },

  async scheduling() {
    const { sender, receiver } = await queue("scheduling");
    const numbers = await sender.scheduleMessages([..."abc"].map((body) => ({ body })), new Date(Date.now() + 3600000));
    assert.equal(numbers.length, 3);
    await sender.cancelScheduledMessages([numbers[0], numbers[2]]);
    await assert.rejects(sender.cancelScheduledMessages(numbers[0]), { code: "MessageNotFound" });
    assert.deepEqual((await receiver.peekMessages(5)).map((message) => message.body), ["b"]);
    await sender.cancelScheduledMessages(numbers[1]);
    const due = Date.now() + 1000;
    await sender.scheduleMessages([{ body: "d" }], new Date(due));
    const [message] = await several(receiver, 1);
    assert.equal(message.body, "d");
    assert.ok(Date.now() >= due - 500 && message.scheduledEnqueueTimeUtc.getTime() === due);
    await receiver.completeMessage(message);
  },

  async deletion() {
    const { sender, receiver } = await queue("deletion");
    if (receiver.deleteMessages === undefined && receiver.batchDeleteMessages === undefined) return;
    await sender.sendMessages([..."abcd"].map((body) => ({ body })));
    const remove = (receiver.deleteMessages ?? receiver.batchDeleteMessages).bind(receiver);
    assert.equal(await remove(receiver.deleteMessages ? { maxMessageCount: 3 } : 3), 3);
    assert.equal(await receiver.purgeMessages(), 1);
    assert.deepEqual(await receiver.peekMessages(1), []);
  },

  async closing() {
    const { path, sender } = await queue("closing");
    await sender.sendMessages({ body: "x" });
    await sender.close();
    assert.ok(sender.isClosed);
    await assert.rejects(sender.sendMessages({ body: "y" }));
    const receiver = client.createReceiver(path);
    const waiting = receiver.receiveMessages(5, { maxWaitTimeInMs: 20000 });
    const [message] = await waiting;
    await receiver.close();
    await assert.rejects(receiver.peekMessages(1));
    const other = client.createReceiver(path);
    assert.ok((await other.peekMessages(1)).length === 1 && message.body === "x");
  },
});

async function outage() {
  const sender = createSender("node-outage");
  const receiver = client.createReceiver("node-outage");
  await sender.sendMessages({ body: "before" });
  await receiver.completeMessage((await several(receiver, 1))[0]);
  const answer = new Promise((resolve) => process.stdin.once("data", resolve));
  console.log("outage");
  await answer;
  await sender.sendMessages({ body: "after" });
  const [message] = await several(receiver, 1);
  assert.equal(message.body, "after");
  await receiver.completeMessage(message);
}

async function run(name, check) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`failed ${name} ${String(error.stack).replaceAll("\n", " | ")}`);
  }
}

(async () => {
  for (const name of ["queue", "bodies", "schedule", "delete", "subscribe", "properties", "outage"]) await manager.createQueue(`node-${name}`);
  await manager.createQueue("node-sessions", { requiresSession: true });
  await manager.createTopic("node-topic");
  await manager.createSubscription("node-topic", "s");
  await Promise.all(Object.entries(checks).map(([name, check]) => run(name, check)));
  await run("outage", outage);
  await client.close();
  process.exit(0);
})();
