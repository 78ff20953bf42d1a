/** Send a message as a client does: faults, full queues and wrong keys apply. */

import { ask } from "./api.js";
import { Field, notify, openForm } from "./dialogs.js";
import { html } from "./dom.js";
import { now, plural } from "./format.js";
import { Component } from "./preact.js";
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
const KEYS = ["session_id", "partition_key"];
const KINDS = ["text", "number", "true or false"];
const remembered = new Map();

/** Open the dialog for an entity; `changed` is called after a send. */
export function openSend(namespace, path, changed) {
  const row = rowOf(namespace, path);
  const before = remembered.get(`${namespace}/${path}`) ?? {};
  const text = ([name, label, placeholder]) => html`
    <${Field}
      id="send-${name}" name=${name} label=${label} placeholder=${placeholder} defaultValue=${before[name] ?? ""}
      required=${name === "session_id" && row?.requires_session}
    />`;
  const number = (name, label, min, placeholder, value = "") => html`
    <${Field}
      id="send-${name}" name=${name} label=${label} type="number" step="any" min=${min} placeholder=${placeholder}
      defaultValue=${before[name] ?? value}
    />`;
  const known = Object.entries(before.application_properties ?? {});

  const send = async (data) => {
    const said = messageIn(data);
    const done = await ask("POST", "messages", { namespace, entity: path }, said);
    const times = { delay: data.get("delay"), life: data.get("life") };
    remembered.set(`${namespace}/${path}`, { ...said, message_id: undefined, ...times });
    notify(`Sent ${plural(done.sent, "message")} to ${path}.`);
    changed();
  };
  const fields = html`
    <label for="send-body">Body</label>
    <textarea
      id="send-body" name="body" rows="6" spellcheck=${false} autofocus defaultValue=${before.body ?? '{"order": 1}'}
    />
    <div class="grid">
      ${TEXTS.filter(([name]) => KEYS.includes(name)).map(text)}
      ${number("copies", "How many", 1, null, "1")}
      ${number("delay", "Delay in seconds", 0, "none")}
    </div>
    <details open=${known.length > 0}>
      <summary>More properties</summary>
      <div class="grid">
        ${TEXTS.filter(([name]) => !KEYS.includes(name)).map(text)}
        ${number("life", "Time to live in seconds", 0, "that of the entity")}
      </div>
      <h3>Application properties</h3>
      <${Properties} known=${known} />
    </details>`;
  openForm(`Send to ${path}`, "send", fields, "Send", send);
}

/** The message that the fields describe. */
function messageIn(data) {
  const said = { body: data.get("body"), application_properties: propertiesIn(data) };
  for (const [name] of TEXTS) if (data.get(name)) said[name] = data.get(name);
  const [copies, delay, life] = ["copies", "delay", "life"].map((name) => data.get(name));
  if (Number(copies) > 1) said.copies = Number(copies);
  if (delay) said.scheduled_enqueue_time_utc = new Date((now() + Number(delay)) * 1000).toISOString();
  if (life) said.time_to_live = `${life} s`;
  return said;
}

/** Application properties: a row for each, and a button for more. */
class Properties extends Component {
  state = { rows: this.props.known.map((each, at) => [at, ...each]) };

  render(_, { rows }) {
    const drop = (row) => this.setState({ rows: rows.filter((each) => each !== row) });
    const add = () => this.setState({ rows: [...rows, [rows.length && rows.at(-1)[0] + 1, "", ""]] });
    return html`
      <div class="property-rows">
        ${rows.map((row) => {
          const [id, name, value] = row;
          const kind = { number: "number", boolean: "true or false" }[typeof value] ?? "text";
          return html`
            <div class="property-row" key=${id}>
              <input name="name" aria-label="Name of the property" placeholder="name" defaultValue=${name} />
              <input
                name="value" aria-label="Value of the property" placeholder="value" defaultValue=${String(value)}
              />
              <select name="kind" aria-label="Type of the property">
                ${KINDS.map((each) => html`<option selected=${each === kind}>${each}</option>`)}
              </select>
              <button
                type="button" class="quiet" aria-label="Remove the property" onclick=${() => drop(row)}
              >✕</button>
            </div>`;
        })}
      </div>
      <button type="button" class="quiet" onclick=${add}>Add a property</button>`;
  }
}

function propertiesIn(data) {
  const found = {};
  const [values, kinds] = [data.getAll("value"), data.getAll("kind")];
  data.getAll("name").forEach((name, at) => {
    const [value, kind] = [values[at], kinds[at]];
    if (!name) return;
    if (kind === "number" && (!value.trim() || Number.isNaN(Number(value))))
      throw new Error(`${name} must be a number, but is ${value || "empty"}.`);
    if (kind === "text") found[name] = value;
    else found[name] = kind === "number" ? Number(value) : value.trim().toLowerCase() === "true";
  });
  return found;
}
