/** One message: its body, its properties, and actions. */

import { ask } from "./api.js";
import { bodyViews } from "./body.js";
import { copyButton } from "./connection.js";
import { attempt, confirmed, openWindow, notify } from "./dialogs.js";
import { h, set, visible } from "./dom.js";
import { ago, bytes, span } from "./format.js";
import { isPartitioned } from "./store.js";

const TIMESTAMPS = new Set(["enqueued_at", "scheduled_at", "expires_at", "locked_until"]);
const FACTS = [
  ["message_id", "message id"],
  ["session_id", "session id"],
  ["partition_key", "partition key"],
  ["subject", "subject"],
  ["content_type", "content type"],
  ["correlation_id", "correlation id"],
  ["to", "to"],
  ["reply_to", "reply to"],
  ["reply_to_session_id", "reply to session"],
  ["dead_letter_reason", "dead-letter reason"],
  ["dead_letter_description", "description"],
  ["dead_letter_source", "dead-lettered from"],
  ["destination", "destination"],
  ["state", "state"],
  ["enqueued_at", "enqueued"],
  ["scheduled_at", "scheduled for"],
  ["expires_at", "expires"],
  ["locked_until", "locked until"],
  ["time_to_live_s", "time to live"],
  ["delivery_count", "failed deliveries"],
  ["sequence_number", "sequence number"],
  ["original_sequence_number", "original sequence number"],
  ["fragment", "fragment"],
  ["size_bytes", "size"],
];

/**
 * Open a message; resolves to a function that closes it.
 *
 * @param place - `{namespace, path}` of the queue, or of the dead-letter queue behind it.
 * @param changed - called after the message was removed or moved.
 * @param closed - called when it is closed, or if it does not exist.
 */
export async function openMessage(place, number, changed, closed) {
  const message = await attempt(() =>
    ask("GET", `messages/${number}`, { namespace: place.namespace, entity: place.path }),
  );
  if (!message) {
    changed();
    closed();
    return () => {};
  }
  const isDead = /\/\$deadletterqueue$/i.test(place.path);
  const said = { entity: place.path, sequence_numbers: [message.sequence_number] };
  const done = (text) => {
    element.close();
    notify(text);
    changed();
  };
  const resubmit = async () => {
    const answer = await attempt(() => ask("POST", "resubmit", { namespace: place.namespace }, said));
    if (!answer) return;
    if (answer.held) done("A receiver has locked it: it was not resubmitted.");
    else if (answer.sessionless) done("It has no session, and its queue requires one: it was not resubmitted.");
    else done(`Resubmitted message ${number}.`);
  };
  const remove = async () => {
    const sure = await confirmed(
      "Delete this message?",
      "It will be deleted, also if a receiver has locked it. This cannot be undone.",
      "Delete it",
    );
    if (sure && (await attempt(() => ask("POST", "purge", { namespace: place.namespace }, said))))
      done(`Deleted message ${number}.`);
  };
  const element = openWindow(
    `Message ${number}`,
    "message",
    h(
      "div",
      { class: "message-parts" },
      bodyPart(message.body),
      factsPart(message, isPartitioned(place)),
      propertiesPart(message.application_properties),
    ),
    h(
      "div",
      { class: "buttons" },
      copyButton("Copy link to this message", async () => location.href, "Copied the address.", "Copy link"),
      h("button", { type: "button", class: "danger", onclick: remove }, "Delete…"),
      isDead ? h("button", { type: "button", class: "primary", onclick: resubmit }, "Resubmit") : null,
    ),
  );
  element.addEventListener("close", closed);
  return () => element.close();
}

function bodyPart(body) {
  const views = bodyViews(body);
  const place = h("div", { class: "body-place" });
  const choose = (view) => {
    place.replaceChildren(view.element);
    buttons.forEach((button, at) => set(button, "aria-pressed", String(views[at] === view)));
  };
  const buttons = views.map((view) =>
    h("button", { type: "button", class: "quiet", onclick: () => choose(view) }, view.name),
  );
  const copy = copyButton("Copy the body", async () => place.textContent, "Copied the body as shown.");
  copy?.classList.add("push");
  choose(views[0]);
  return h(
    "section",
    { class: "message-body" },
    h(
      "div",
      { class: "part-head" },
      h("h3", {}, "Body"),
      h(
        "span",
        { class: "muted" },
        `${bytes(body.size_bytes)}${body.type === "data" ? "" : `, AMQP ${body.type}`}${body.is_cut ? ", cut" : ""}`,
      ),
      h("span", { class: "segments", role: "group", "aria-label": "Show the body as" }, ...buttons),
      copy,
    ),
    place,
  );
}

function factsPart(message, hasFragments) {
  const isGiven = (name) => message[name] !== null && message[name] !== undefined;
  const rows = FACTS.filter(([name]) => isGiven(name) && (name !== "fragment" || hasFragments));
  return h(
    "section",
    {},
    h("h3", {}, "Properties"),
    h(
      "dl",
      { class: "facts" },
      ...rows.flatMap(([name, word]) => [h("dt", {}, word), h("dd", {}, shown(name, message[name]))]),
    ),
  );
}

function shown(name, value) {
  if (TIMESTAMPS.has(name)) return ago(value);
  if (name === "time_to_live_s") return span(value);
  if (name === "size_bytes") return bytes(value);
  return visible(value);
}

function propertiesPart(properties) {
  const rows = properties.map(({ name, type, value }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, visible(name)),
      h("td", { class: "value" }, visible(value)),
      h("td", { class: "muted" }, type),
    ),
  );
  return h(
    "section",
    {},
    h("h3", {}, "Application properties"),
    rows.length
      ? h("table", { class: "properties" }, h("tbody", {}, ...rows))
      : h("p", { class: "empty" }, "None."),
  );
}
