/** Send a message as a client does: faults, full queues and wrong keys apply. */

import { ask } from "./api.js";
import { field, notify, openForm } from "./dialogs.js";
import { h } from "./dom.js";
import { now, plural } from "./format.js";
import { rowOf } from "./store.js";

const TEXTS = [
  ["session_id", "Session id"],
  ["partition_key", "Partition key"],
  ["message_id", "Message id", "generated if empty"],
  ["subject", "Subject"],
  ["content_type", "Content type", "such as application/json"],
  ["correlation_id", "Correlation id"],
  ["to", "To"],
  ["reply_to", "Reply to"],
  ["reply_to_session_id", "Reply to session"],
];
const remembered = new Map();

/** Open the dialog for an entity; `changed` is called after a send. */
export function openSend(namespace, path, changed) {
  const row = rowOf(namespace, path);
  const before = remembered.get(`${namespace}/${path}`) ?? {};
  const body = h("textarea", { id: "send-body", rows: 6, spellcheck: "false", value: before.body ?? '{"order": 1}' });
  const fields = new Map(
    TEXTS.map(([name, , hint]) => [
      name,
      h("input", {
        id: `send-${name}`,
        autocomplete: "off",
        spellcheck: "false",
        placeholder: hint,
        value: before[name] ?? "",
      }),
    ]),
  );
  if (row?.requires_session) fields.get("session_id").required = true;
  const copies = number("send-copies", 1, before.copies ?? 1);
  const delay = number("send-delay", 0, before.delay ?? "", "none");
  const timeToLive = number("send-life", 0, before.timeToLive ?? "", "that of the entity");
  const properties = h("div", { class: "property-rows" });
  for (const [name, value] of Object.entries(before.application_properties ?? {}))
    properties.append(propertyRow(name, value));

  const send = async () => {
    const said = read();
    const done = await ask("POST", "messages", { namespace, entity: path }, said);
    const times = { delay: delay.value, timeToLive: timeToLive.value };
    remembered.set(`${namespace}/${path}`, { ...said, message_id: undefined, ...times });
    notify(`Sent ${plural(done.sent, "message")} to ${path}.`);
    changed();
  };

  function read() {
    const said = { body: body.value, application_properties: propertiesIn(properties) };
    for (const [name, input] of fields) if (input.value) said[name] = input.value;
    if (Number(copies.value) > 1) said.copies = Number(copies.value);
    if (delay.value) said.scheduled_enqueue_time_utc = new Date((now() + Number(delay.value)) * 1000).toISOString();
    if (timeToLive.value) said.time_to_live = `${timeToLive.value} s`;
    return said;
  }

  const keys = ["session_id", "partition_key"];
  const labelled = ([name, word]) => field(word, fields.get(name));
  const parts = [
    h("label", { for: "send-body" }, "Body"),
    body,
    h(
      "div",
      { class: "grid" },
      ...TEXTS.filter(([name]) => keys.includes(name)).map(labelled),
      field("How many", copies),
      field("Delay in seconds", delay),
    ),
    h(
      "details",
      { open: properties.children.length > 0 },
      h("summary", {}, "More properties"),
      h(
        "div",
        { class: "grid" },
        ...TEXTS.filter(([name]) => !keys.includes(name)).map(labelled),
        field("Time to live in seconds", timeToLive),
      ),
      h("h3", {}, "Application properties"),
      properties,
      h(
        "button",
        { type: "button", class: "quiet", onclick: () => properties.append(propertyRow("", "")) },
        "Add a property",
      ),
    ),
  ];
  openForm(`Send to ${path}`, "send", parts, "Send", send);
  body.focus();
}

function number(id, min, value, hint = null) {
  return h("input", { id, type: "number", min, step: "any", value: String(value), placeholder: hint });
}

function propertyRow(name, value) {
  const row = h(
    "div",
    { class: "property-row" },
    h("input", { "aria-label": "Name of the property", placeholder: "name", value: name }),
    h("input", { "aria-label": "Value of the property", placeholder: "value", value: String(value) }),
    h(
      "select",
      { "aria-label": "Type of the property" },
      ...["text", "number", "true or false"].map((kind) => h("option", {}, kind)),
    ),
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": "Remove the property", onclick: () => row.remove() },
      "✕",
    ),
  );
  row.querySelector("select").value = { number: "number", boolean: "true or false" }[typeof value] ?? "text";
  return row;
}

function propertiesIn(place) {
  const found = {};
  for (const row of place.children) {
    const [name, value, kind] = row.children;
    if (!name.value) continue;
    if (kind.value === "number") {
      if (!value.value.trim() || Number.isNaN(Number(value.value)))
        throw new Error(`${name.value} must be a number, but is ${value.value || "empty"}.`);
      found[name.value] = Number(value.value);
    } else found[name.value] = kind.value === "text" ? value.value : value.value.trim().toLowerCase() === "true";
  }
  return found;
}
