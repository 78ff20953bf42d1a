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
    const at = new Date(Date.now() + 5000);
    const [first] = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], at);
    await sender.cancelScheduledMessages(first);
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
