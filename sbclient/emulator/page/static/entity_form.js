/** Create, change and delete queues, topics, subscriptions and rules, with the settings of `sbclient admin --set`. */

import { ask } from "./api.js";
import { attempt, confirmed, Field, notify, openForm } from "./dialogs.js";
import { html } from "./dom.js";
import { Component } from "./preact.js";
import { CORRELATION, SETTINGS } from "./settings.js";

const PROPERTY = "property.";
const FORM = "entity-form";

/** Open the form of a new entity; `parents` are the names above it. `created(names)` is called after success. */
export function openCreate(namespace, kind, parents, created) {
  const above = parents.length ? ` of ${parents.at(-1)}` : "";
  const fields = html`
    <${Field} id="entity-name" name="entity-name" label="Name" required autofocus />
    ${kind === "rule" ? html`<${RuleFields} settings=${{ sql: "", action: "" }} />` : settingFields(kind, null)}`;
  openForm(`New ${kind}${above}`, FORM, fields, "Create", async (data) => {
    const names = [...parents, data.get("entity-name").trim()];
    const settings = kind === "rule" ? ruleIn(data) : settingsIn(data, kind, null);
    await ask("POST", "entities", { namespace }, { kind, names, settings });
    notify(`Created ${kind} ${names.at(-1)}.`);
    created?.(names);
  });
}

/** Open the form of an entity, or of one of its rules, and change the settings that differ. */
export async function openChange(namespace, entity, rule = null) {
  const place = { namespace, entity, rule };
  const found = await attempt(() => ask("GET", "entities", place));
  if (!found) return;
  const { kind, settings: before } = found;
  const isRule = kind === "rule";
  const fields = isRule ? html`<${RuleFields} settings=${before} />` : settingFields(kind, found);
  openForm(`Change ${kind} ${found.names.at(-1)}`, FORM, fields, "Change", async (data) => {
    const read = isRule ? ruleIn(data) : settingsIn(data, kind, found);
    const changed = Object.entries(read).filter(([name, text]) => text !== before[name]);
    const isSame = isRule ? JSON.stringify(read) === JSON.stringify(before) : !changed.length;
    if (isSame) return;
    await ask("PUT", "entities", place, { settings: isRule ? read : Object.fromEntries(changed) });
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
  const own = SETTINGS.filter((each) => each.kinds.includes(kind));
  const field = ({ name, label, about, initial, hint, isCheck, choices }) => {
    const id = `setting-${name}`;
    const value = found?.settings[name] ?? initial;
    const disabled = found?.fixed.includes(name) ?? false;
    const words = html`${label}${disabled && html`<span class="muted"> (fixed at creation)</span>`}`;
    if (isCheck) {
      return html`
        <p class="check" title=${about}>
          <input id=${id} name=${name} type="checkbox" defaultChecked=${value === "true"} disabled=${disabled} />
          <label for=${id}>${words}</label>
        </p>`;
    }
    if (!choices) {
      const shown = { id, name, label: words, title: about, placeholder: hint, defaultValue: value };
      return html`<${Field} ...${shown} />`;
    }
    return html`
      <div class="field" title=${about}>
        <label for=${id}>${words}</label>
        <select id=${id} name=${name}>
          ${choices.map((each) => html`<option selected=${each === value}>${each}</option>`)}
        </select>
      </div>`;
  };
  return html`
    <div class="checks">${own.filter((each) => each.isCheck).map(field)}</div>
    <div class="grid">${own.filter((each) => !each.isCheck).map(field)}</div>
    <p class="note">Durations: 30 s, 5 min, 2 h, 7 d, PT30S, unlimited.</p>`;
}

/** The settings in a form: of a new entity those with a text, of an existing one those that can be changed. */
function settingsIn(data, kind, found) {
  const settings = {};
  for (const { name, kinds, isCheck } of SETTINGS) {
    if (!kinds.includes(kind) || found?.fixed.includes(name)) continue;
    const text = isCheck ? String(data.has(name)) : data.get(name).trim();
    if (found || text) settings[name] = text;
  }
  return settings;
}

/** The fields of a rule: an SQL expression or a correlation filter, and an action. */
class RuleFields extends Component {
  state = { kind: "sql" in this.props.settings ? "sql" : "correlation" };

  render({ settings }, { kind }) {
    const properties = Object.entries(settings).filter(([name]) => name.startsWith(PROPERTY));
    const lines = properties.map(([name, value]) => `${name.slice(PROPERTY.length)}=${value}`);
    const text = (name, label, rows, value) => html`
      <${Field} id="rule-${name}" name=${name} label=${label} rows=${rows} defaultValue=${value ?? ""} />`;
    const choose = ({ target }) => this.setState({ kind: target.value });
    return html`
      <div class="field">
        <label for="rule-kind">Accepts messages by</label>
        <select id="rule-kind" name="kind" value=${kind} onchange=${choose}>
          <option value="sql">SQL expression</option>
          <option value="correlation">equal properties (correlation)</option>
        </select>
      </div>
      <div hidden=${kind !== "sql"}>
        ${text("sql", "SQL expression", 3, settings.sql)}
        <p class="note">${"For example price < 10 AND sys.Label = 'new'; 1=1 accepts every message."}</p>
      </div>
      <div hidden=${kind === "sql"}>
        <div class="grid">${CORRELATION.map(({ name, label }) => text(name, label, 0, settings[name]))}</div>
        ${text(
          "properties",
          "Application properties, one in a line: country=IE, or price:=5 for JSON",
          3,
          lines.join("\n"),
        )}
      </div>
      ${text("action", "Then changes them by (optional), such as SET class = 'cheap'", 2, settings.action)}`;
  }
}

/** The settings of the rule in a form. */
function ruleIn(data) {
  const said = { action: data.get("action").trim() };
  if (data.get("kind") === "sql") {
    const sql = data.get("sql").trim();
    if (!sql) throw new Error("The SQL expression is empty: 1=1 accepts every message.");
    return { sql, ...said };
  }
  const values = CORRELATION.map(({ name }) => [name, data.get(name)]).filter(([, value]) => value);
  for (const line of data.get("properties").split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`The line ${line} is not name=value.`);
    values.push([PROPERTY + line.slice(0, at).trim(), line.slice(at + 1).trim()]);
  }
  if (!values.length) throw new Error("A correlation filter needs at least one property.");
  return { ...Object.fromEntries(values), ...said };
}
