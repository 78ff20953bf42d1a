/** Create, change and delete queues, topics, subscriptions and rules, with the settings of `sbclient admin --set`. */

import { ask } from "./api.js";
import { attempt, confirmed, field, notify, openForm } from "./dialogs.js";
import { h } from "./dom.js";

const [QUEUE, TOPIC, SUBSCRIPTION] = ["queue", "topic", "subscription"];
const BOTH = [QUEUE, SUBSCRIPTION];
const ALL = [QUEUE, TOPIC, SUBSCRIPTION];
const STATUSES = ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"];

/** The settings, the kinds of entities that have them, and the defaults, which are shown in empty fields. */
const SETTINGS = [
  { name: "requires_session", label: "Requires sessions", kinds: BOTH, isCheck: true },
  { name: "enable_partitioning", label: "Partitioned", kinds: [QUEUE, TOPIC], isCheck: true },
  { name: "requires_duplicate_detection", label: "Detects duplicates", kinds: [QUEUE, TOPIC], isCheck: true },
  { name: "dead_lettering_on_message_expiration", label: "Dead-letters expired messages", kinds: BOTH, isCheck: true },
  { name: "lock_duration", label: "Lock duration", kinds: BOTH, hint: "1 min" },
  { name: "max_delivery_count", label: "Maximum delivery count", kinds: BOTH, hint: "10" },
  { name: "default_message_time_to_live", label: "Default time to live", kinds: ALL, hint: "unlimited" },
  { name: "duplicate_detection_history_time_window", label: "Duplicate window", kinds: [QUEUE, TOPIC], hint: "10 min" },
  { name: "auto_delete_on_idle", label: "Delete when idle for", kinds: ALL, hint: "unlimited" },
  { name: "max_size_in_megabytes", label: "Maximum size in MB", kinds: [QUEUE, TOPIC], hint: "1024" },
  { name: "forward_to", label: "Forward messages to", kinds: BOTH, hint: "none" },
  { name: "forward_dead_lettered_messages_to", label: "Forward dead letters to", kinds: BOTH, hint: "none" },
  { name: "user_metadata", label: "User metadata", kinds: ALL, hint: "none" },
  { name: "status", label: "Status", kinds: ALL, choices: STATUSES },
];
const CORRELATION = [
  ["correlation_id", "Correlation id"],
  ["message_id", "Message id"],
  ["to", "To"],
  ["reply_to", "Reply to"],
  ["label", "Subject (label)"],
  ["session_id", "Session id"],
  ["reply_to_session_id", "Reply to session"],
  ["content_type", "Content type"],
];
const PROPERTY = "property.";
const FORM = "entity-form";

/** Open the form of a new entity; `parents` are the names above it. `created(names)` is called after success. */
export function openCreate(namespace, kind, parents, created) {
  const name = h("input", { id: "entity-name", required: true, autocomplete: "off", spellcheck: "false" });
  const fields = kind === "rule" ? ruleFields({ sql: "", action: "" }) : settingFields(kind, null);
  const above = parents.length ? ` of ${parents.at(-1)}` : "";
  openForm(`New ${kind}${above}`, FORM, [field("Name", name), ...fields.elements], "Create", async () => {
    const names = [...parents, name.value.trim()];
    await ask("POST", "entities", { namespace }, { kind, names, settings: fields.read() });
    notify(`Created ${kind} ${names.at(-1)}.`);
    created?.(names);
  });
  name.focus();
}

/** Open the form of an entity, or of one of its rules, and change the settings that differ. */
export async function openChange(namespace, entity, rule = null) {
  const place = { namespace, entity, rule };
  const found = await attempt(() => ask("GET", "entities", place));
  if (!found) return;
  const { kind, settings: before } = found;
  const fields = kind === "rule" ? ruleFields(before) : settingFields(kind, found);
  openForm(`Change ${kind} ${found.names.at(-1)}`, FORM, fields.elements, "Change", async () => {
    const read = fields.read();
    const changed = Object.entries(read).filter(([name, text]) => text !== before[name]);
    const isSame = kind === "rule" ? JSON.stringify(read) === JSON.stringify(before) : !changed.length;
    if (isSame) return;
    const settings = kind === "rule" ? read : Object.fromEntries(changed);
    await ask("PUT", "entities", place, { settings });
    notify(`Changed ${kind} ${found.names.at(-1)}.`);
  });
}

/** Delete an entity or a rule after a question; resolves to true if it was deleted. */
export async function deleteEntity(namespace, entity, explanation, rule = null) {
  const name = rule === null ? entity : `rule ${rule}`;
  if (!(await confirmed(`Delete ${name}?`, `${explanation} This cannot be undone.`, `Delete ${name}`))) return false;
  const done = await attempt(() => ask("DELETE", "entities", { namespace, entity, rule }));
  if (done) notify(`Deleted ${name}.`);
  return Boolean(done);
}

/** The fields of the settings of a kind; `found` is an existing entity, null for a new one. */
function settingFields(kind, found) {
  const fields = SETTINGS.filter((each) => each.kinds.includes(kind)).map((each) => ({ ...each, input: input(each) }));

  function input({ name, isCheck, choices, hint }) {
    const id = `setting-${name}`;
    const value = found?.settings[name] ?? "";
    const disabled = found?.fixed.includes(name) ?? false;
    if (isCheck) return h("input", { id, type: "checkbox", checked: value === "true", disabled });
    if (!choices) return h("input", { id, value, placeholder: hint, autocomplete: "off", spellcheck: "false" });
    const select = h("select", { id }, ...choices.map((each) => h("option", {}, each)));
    select.value = value || choices[0];
    return select;
  }
  const checks = fields.filter((each) => each.isCheck);
  const others = fields.filter((each) => !each.isCheck);
  const label = ({ input: { id, disabled }, label: text }) =>
    h("label", { for: id }, text, disabled ? h("span", { class: "muted" }, " (fixed at creation)") : null);
  return {
    elements: [
      h("div", { class: "checks" }, ...checks.map((each) => h("p", { class: "check" }, each.input, label(each)))),
      h("div", { class: "grid" }, ...others.map((each) => h("div", { class: "field" }, label(each), each.input))),
      h("p", { class: "note" }, "Durations: 30 s, 5 min, 2 h, 7 d, PT30S, unlimited."),
    ],
    read() {
      const settings = {};
      for (const { name, isCheck, input: element } of fields) {
        if (element.disabled) continue;
        const text = isCheck ? String(element.checked) : element.value.trim();
        if (found || text) settings[name] = text;
      }
      return settings;
    },
  };
}

/** The fields of a rule: an SQL expression or a correlation filter, and an action. */
function ruleFields(settings) {
  const text = (id, value, rows) => h("textarea", { id, rows, spellcheck: "false", value });
  const sql = text("rule-sql", settings.sql ?? "", 3);
  const action = text("rule-action", settings.action ?? "", 2);
  const properties = Object.entries(settings).filter(([name]) => name.startsWith(PROPERTY));
  const lines = properties.map(([name, value]) => `${name.slice(PROPERTY.length)}=${value}`);
  const list = text("rule-properties", lines.join("\n"), 3);
  const fields = CORRELATION.map(([name, label]) => ({
    name,
    label,
    input: h("input", { id: `rule-${name}`, value: settings[name] ?? "", autocomplete: "off", spellcheck: "false" }),
  }));
  const kind = h(
    "select",
    { id: "rule-kind", onchange: show },
    h("option", { value: "sql" }, "SQL expression"),
    h("option", { value: "correlation" }, "equal properties (correlation)"),
  );
  kind.value = "sql" in settings ? "sql" : "correlation";
  const asSql = h(
    "div",
    {},
    field("SQL expression", sql),
    h("p", { class: "note" }, "For example price < 10 AND sys.Label = 'new'; 1=1 accepts every message."),
  );
  const asCorrelation = h(
    "div",
    {},
    h("div", { class: "grid" }, ...fields.map((each) => field(each.label, each.input))),
    field("Application properties, one in a line: country=IE, or price:=5 for JSON", list),
  );
  show();

  function show() {
    asSql.hidden = kind.value !== "sql";
    asCorrelation.hidden = kind.value === "sql";
  }
  return {
    elements: [
      field("Accepts messages by", kind),
      asSql,
      asCorrelation,
      field("Then changes them by (optional), such as SET class = 'cheap'", action),
    ],
    read() {
      const said = { action: action.value.trim() };
      if (kind.value === "sql") {
        if (!sql.value.trim()) throw new Error("The SQL expression is empty: 1=1 accepts every message.");
        return { sql: sql.value.trim(), ...said };
      }
      const values = fields.filter((each) => each.input.value).map((each) => [each.name, each.input.value]);
      for (const line of list.value.split("\n").filter((each) => each.trim())) {
        const at = line.indexOf("=");
        if (at < 1) throw new Error(`The line ${line} is not name=value.`);
        values.push([PROPERTY + line.slice(0, at).trim(), line.slice(at + 1).trim()]);
      }
      if (!values.length) throw new Error("A correlation filter needs at least one property.");
      return { ...Object.fromEntries(values), ...said };
    },
  };
}
