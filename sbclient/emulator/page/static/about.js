/** The settings of an entity, and the subscriptions of a topic or the rules of a subscription. */

import { h, keyed, visible, write } from "./dom.js";
import { ago, bytes, setAgo, span } from "./format.js";
import { addressOf } from "./names.js";

/** The panel; its `update(row, detail)` shows it. */
export function aboutPart() {
  const list = h("dl", { class: "facts" });
  const below = h("div", {});
  return {
    element: h("div", {}, list, below),
    update(row, detail) {
      const facts = [
        ["lock duration", detail.lock_duration_s === null ? null : span(detail.lock_duration_s)],
        ["maximum delivery count", detail.max_delivery_count],
        ["default time to live", detail.default_ttl_s === null ? "unlimited" : span(detail.default_ttl_s)],
        ["expired messages are", detail.dead_letters_expired ? "dead-lettered" : "dropped"],
        [
          "duplicate detection",
          detail.duplicate_window_s === null ? "off" : `within ${span(detail.duplicate_window_s)}`,
        ],
        ["largest message", bytes(detail.max_message_bytes)],
        ["deleted when idle for", detail.idle_s === null ? "never" : span(detail.idle_s)],
        ["status", row.status],
      ].filter(([, value]) => value !== null && value !== undefined);
      keyed(
        list,
        [
          ...facts.map(([word, value]) => ({ word, value })),
          { word: "made", at: detail.created_at },
          ...(detail.accessed_at ? [{ word: "last used", at: detail.accessed_at }] : []),
        ],
        (each) => each.word,
        (each) => h("div", {}, h("dt", {}, each.word), h("dd", {}, "at" in each ? ago(null) : "")),
        (element, each) =>
          "at" in each ? setAgo(element.lastChild.firstChild, each.at) : write(element.lastChild, each.value),
      );
      const said = JSON.stringify([detail.rules, detail.subscriptions]);
      if (below.dataset.said === said) return;
      below.dataset.said = said;
      below.replaceChildren(...[rulesPart(detail.rules), subscriptionsPart(detail)].filter(Boolean));
    },
  };
}

function rulesPart(rules) {
  if (!rules) return null;
  const rows = rules.map((rule) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, visible(rule.name)),
      h("td", {}, h("code", {}, visible(rule.filter))),
      h("td", {}, h("code", {}, visible(rule.action ?? ""))),
    ),
  );
  const heads = ["rule", "accepts", "and changes"].map((head) => h("th", { scope: "col" }, head));
  return h(
    "div",
    { class: "scroll" },
    h("table", { class: "rules" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)),
  );
}

function subscriptionsPart({ namespace, subscriptions }) {
  if (!subscriptions) return null;
  if (!subscriptions.length) return h("p", { class: "empty" }, "No subscriptions: messages are dropped.");
  const links = subscriptions.map((each) => h("li", {}, h("a", { href: addressOf(namespace, each) }, visible(each))));
  return h("div", {}, h("h3", {}, "Subscriptions"), h("ul", {}, ...links));
}
