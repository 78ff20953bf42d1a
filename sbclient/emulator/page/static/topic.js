/** The subscriptions of a topic with their rules, and the rules of a subscription. */

import { html, visible } from "./dom.js";
import { deleteEntity, openChange, openCreate } from "./entity_form.js";
import { count } from "./format.js";
import { addressOf } from "./names.js";
import { rowOf } from "./store.js";

/** The subscriptions. */
export function SubscriptionList({ namespace, topic, detail }) {
  return html`
    <${Parts}
      look="subscriptions" caption="Subscriptions of ${topic}" parts=${detail?.subscriptions ?? []}
      heads=${["subscription", ["active", "number"], ["dead-lettered", "number"], "rules"].map(head)}
      word="New subscription…" create=${() => openCreate(namespace, "subscription", [topic])}
      none="No subscriptions: the topic drops every message." row=${(each) => subscription(namespace, each)}
    />`;
}

/** The rules. */
export function RuleList({ namespace, path, detail }) {
  const [topic, , name] = splitPath(path);
  return html`
    <${Parts}
      look="rules" caption="Rules of ${path}" parts=${detail?.rules ?? []}
      heads=${[...["rule", "accepts", "then"].map(head), html`<td></td>`]}
      word="New rule…" create=${() => openCreate(namespace, "rule", [topic, name])}
      none="No rules: the subscription accepts no message." row=${(each) => rule(namespace, path, each)}
      note="A message is accepted if a rule matches; each matching action adds a copy."
    />`;
}

const head = (each) => {
  const [word, look] = [each].flat();
  return html`<th scope="col" class=${look}>${word}</th>`;
};

/** A table of the parts of an entity, with a button that creates one. */
function Parts({ look, caption, parts, heads, word, create, none, row, note }) {
  return html`
    <div class="toolbar"><button type="button" onclick=${create}>${word}</button></div>
    <div class="scroll">
      <table class=${look} hidden=${!parts.length}>
        <caption class="hearable">${caption}</caption>
        <thead><tr>${heads}</tr></thead>
        <tbody>${parts.map(row)}</tbody>
      </table>
    </div>
    <p class="empty" hidden=${parts.length > 0}>${none}</p>
    ${note && html`<p class="note">${note}</p>`}`;
}

function subscription(namespace, { path, rules }) {
  const row = rowOf(namespace, path);
  return html`
    <tr key=${path}>
      <th scope="row"><a href=${addressOf(namespace, path)}>${visible(path.split("/").at(-1))}</a></th>
      <td class="number">${count(row?.active ?? 0)}</td>
      <td class="number">${count(row?.dead ?? 0)}</td>
      <td>
        <ul>
          ${rules.map((each) => html`<li>${visible(each.name)}: ${filterOf(each)}</li>`)}
          ${!rules.length && "none: it accepts no message"}
        </ul>
      </td>
    </tr>`;
}

/** A filter and its action. */
function filterOf({ filter, action }) {
  return html`<code>${visible(filter)}</code>${action && html`, then <code>${visible(action)}</code>`}`;
}

function rule(namespace, path, { name, filter, action }) {
  const change = () => openChange(namespace, path, name);
  const remove = () => deleteEntity(namespace, path, "New messages are no longer compared with it.", name);
  const button = (word, look, click) => html`
    <button type="button" class="quiet ${look}" aria-label="${word} rule ${name}" onclick=${click}>${word}…</button>`;
  return html`
    <tr key=${name}>
      <th scope="row">${visible(name)}</th>
      <td><code>${visible(filter)}</code></td>
      <td><code>${visible(action ?? "")}</code></td>
      <td class="row-actions">${button("Change", "", change)}${button("Delete", "danger-text", remove)}</td>
    </tr>`;
}

/** The topic, the word between and the name in the path of a subscription. */
export function splitPath(path) {
  const at = path.toLowerCase().indexOf("/subscriptions/");
  return at < 0 ? [path] : [path.slice(0, at), "Subscriptions", path.slice(at + "/subscriptions/".length)];
}
