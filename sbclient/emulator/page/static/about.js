/** The settings of an entity. */

import { html } from "./dom.js";
import { Ago, bytes, span } from "./format.js";
import { state } from "./store.js";

/** The elements of the description that Service Bus does not apply, because they were out of order. */
function ignoredElements({ namespace, path }) {
  const name = path.replace("/Subscriptions/", "/");
  const isMeant = (each) =>
    each.event === "entity.elements_ignored" && each.namespace === namespace && each.path === name;
  return state.events.findLast(isMeant)?.elements.join(", ");
}

/** The list of settings. */
export function About({ row, detail }) {
  const ago = (at) => html`<${Ago} at=${at} />`;
  const window = detail.duplicate_window_s;
  const facts = [
    ["lock duration", detail.lock_duration_s === null ? null : span(detail.lock_duration_s)],
    ["maximum delivery count", detail.max_delivery_count],
    ["default time to live", detail.default_ttl_s === null ? "unlimited" : span(detail.default_ttl_s)],
    ["expired messages are", detail.dead_letters_expired ? "dead-lettered" : "dropped"],
    ["duplicate detection", window === null ? "off" : `within ${span(window)}`],
    ["maximum size", bytes(detail.parts.reduce((sum, part) => sum + part.max_bytes, 0))],
    ["largest message", bytes(detail.max_message_bytes)],
    ...Object.entries(detail.others).map(([name, text]) => [name.replaceAll("_", " "), text]),
    ["deleted when idle for", detail.idle_s === null ? "never" : span(detail.idle_s)],
    ["status", row.status],
    ["created", ago(detail.created_at)],
    ["ignored: out of order", ignoredElements(detail)],
    ["last used", detail.accessed_at ? ago(detail.accessed_at) : null],
  ].filter(([, value]) => value !== null && value !== undefined);
  return html`
    <dl class="facts">
      ${facts.map(([word, value]) => html`<div key=${word}><dt>${word}</dt><dd>${value}</dd></div>`)}
    </dl>`;
}
