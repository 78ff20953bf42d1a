// rhea, an AMQP client that knows nothing of Service Bus: credit, outcomes, and a session filter, over SASL PLAIN.
const rhea = require("rhea");

const [host, port] = [process.argv[2], Number(process.argv[3])];
const container = rhea.create_container();
const connection = container.connect({
  host, port, username: "RootManageSharedAccessKey", password: "SAS_KEY_VALUE", reconnect: false,
});
const seen = [];
const say = (name, isOk, why) => console.log(isOk ? `ok ${name}` : `failed ${name} ${JSON.stringify(why)}`);
const receiver = connection.open_receiver({ source: "queue", credit_window: 0, autoaccept: false });
const sender = connection.open_sender("queue");

sender.once("sendable", () => {
  for (let i = 0; i < 10; i++) sender.send({ body: i, application_properties: { i } });
});
let accepted = 0;
sender.on("accepted", () => {
  if (++accepted === 10) receiver.add_credit(10);
});
receiver.on("message", ({ message, delivery }) => {
  seen.push([message.body, message.delivery_count ?? 0]);
  if (seen.length === 1) { // abandoned: it comes again
    delivery.modified({ delivery_failed: true, undeliverable_here: false });
    receiver.add_credit(1);
  } else if (message.body === 5) {
    delivery.reject({ condition: "com.microsoft:dead-letter", info: { DeadLetterReason: "five" } });
  } else {
    delivery.accept();
  }
  if (seen.length === 11) {
    const first = seen.filter(([body]) => body === seen[0][0]);
    say("outcomes", first.length === 2 && first[1][1] === 1 && new Set(seen.map(([body]) => body)).size === 10, seen);
    dead();
  }
});

function dead() {
  const letters = connection.open_receiver("queue/$DeadLetterQueue");
  letters.once("message", ({ message }) => {
    const reason = message.application_properties;
    say("dead-letter", message.body === 5 && reason.DeadLetterReason === "five", reason);
    session();
  });
}

function session() {
  connection.open_sender("sessions").once("sendable", ({ sender: to }) => {
    to.send({ body: "in a session", group_id: "s1" });
    const filter = { "com.microsoft:session-filter": "s1" };
    const receiver = connection.open_receiver({ source: { address: "sessions", filter } });
    receiver.once("message", ({ message }) => {
      say("session", message.body === "in a session" && receiver.source.filter["com.microsoft:session-filter"] === "s1",
        receiver.source.filter);
      connection.close();
    });
  });
}
