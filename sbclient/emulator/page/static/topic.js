/** The subscriptions of a topic with their rules, and the rules of a subscription. */

import { h, keyed, visible, write } from "./dom.js";
import { deleteEntity, openChange, openCreate } from "./entity_form.js";
import { count } from "./format.js";
import { addressOf } from "./names.js";
import { rowOf } from "./store.js";

const head = (word, className = null) => h("th", { scope: "col", class: className }, word);

/** The subscriptions; its `update(detail)` shows them. */
export const subscriptionList = (namespace, topic) =>
  list({
    className: "subscriptions",
    caption: `Subscriptions of ${topic}`,
    heads: [head("subscription"), head("active", "number"), head("dead-lettered", "number"), head("rules")],
    create: ["New subscription…", () => openCreate(namespace, "subscription", [topic])],
    none: "No subscriptions: the topic drops every message.",
    partsOf: ({ subscriptions }) => subscriptions,
    keyOf: (each) => each.path,
    make: (each) => subscription(namespace, each),
    show: (row, each) => showSubscription(row, rowOf(namespace, each.path), each.rules),
  });

/** The rules; its `update(detail)` shows them. */
export function ruleList(namespace, path) {
  const [topic, , name] = splitPath(path);
  return list({
    className: "rules",
    caption: `Rules of ${path}`,
    heads: [head("rule"), head("accepts"), head("then"), h("td")],
    create: ["New rule…", () => openCreate(namespace, "rule", [topic, name])],
    none: "No rules: the subscription accepts no message.",
    note: "A message is accepted if a rule matches; each matching action adds a copy.",
    partsOf: ({ rules }) => rules,
    keyOf: (each) => JSON.stringify(each),
    make: (each) => rule(namespace, path, each),
  });
}

/** A table of the parts of an entity, with a button that creates one. */
function list({ className, caption, heads, create: [word, onclick], none, note, partsOf, keyOf, make, show }) {
  const body = h("tbody");
  const empty = h("p", { class: "empty" }, none);
  const table = h(
    "table",
    { class: className },
    h("caption", { class: "hearable" }, caption),
    h("thead", {}, h("tr", {}, ...heads)),
    body,
  );
  return {
    element: h(
      "div",
      {},
      h("div", { class: "toolbar" }, h("button", { type: "button", onclick }, word)),
      h("div", { class: "scroll" }, table),
      empty,
      note ? h("p", { class: "note" }, note) : null,
    ),
    update(detail) {
      const parts = partsOf(detail) ?? [];
      table.hidden = !parts.length;
      empty.hidden = parts.length > 0;
      keyed(body, parts, keyOf, make, show);
    },
  };
}

function subscription(namespace, { path }) {
  const link = h("a", { href: addressOf(namespace, path) }, visible(path.split("/").at(-1)));
  const number = () => h("td", { class: "number" });
  return h("tr", {}, h("th", { scope: "row" }, link), number(), number(), h("td", {}, h("ul", {})));
}

function showSubscription(element, row, rules) {
  const [, active, dead, place] = element.children;
  write(active, count(row?.active ?? 0));
  write(dead, count(row?.dead ?? 0));
  keyed(
    place.firstChild,
    rules,
    (rule) => JSON.stringify(rule),
    (rule) => h("li", {}, visible(rule.name), ": ", ...filterOf(rule)),
  );
  if (!rules.length) write(place.firstChild, "none: it accepts no message");
}

/** A filter and its action. */
function filterOf({ filter, action }) {
  return [h("code", {}, visible(filter)), ...(action ? [", then ", h("code", {}, visible(action))] : [])];
}

function rule(namespace, path, { name, filter, action }) {
  const change = () => openChange(namespace, path, name);
  const remove = () => deleteEntity(namespace, path, "New messages are no longer compared with it.", name);
  const button = (word, className, onclick) => {
    const label = `${word} rule ${name}`;
    return h("button", { type: "button", class: `quiet ${className}`, "aria-label": label, onclick }, `${word}…`);
  };
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, visible(name)),
    h("td", {}, h("code", {}, visible(filter))),
    h("td", {}, h("code", {}, visible(action ?? ""))),
    h("td", { class: "row-actions" }, button("Change", "", change), button("Delete", "danger-text", remove)),
  );
}

/** The topic, the word between and the name in the path of a subscription. */
export function splitPath(path) {
  const at = path.toLowerCase().indexOf("/subscriptions/");
  return at < 0 ? [path] : [path.slice(0, at), "Subscriptions", path.slice(at + "/subscriptions/".length)];
}
