/** The settings of an entity. */

import { h, keyed, write } from "./dom.js";
import { ago, bytes, setAgo, span } from "./format.js";
import { state } from "./store.js";

/** The elements of the description that Service Bus does not apply, because they were out of order. */
function ignoredElements({ namespace, path }) {
  const name = path.replace("/Subscriptions/", "/");
  const isMeant = (each) =>
    each.event === "entity.elements_ignored" && each.namespace === namespace && each.path === name;
  const last = state.events.findLast(isMeant);
  return last ? [{ word: "ignored: out of order", value: last.elements.join(", ") }] : [];
}

/** The panel; its `update(row, detail)` shows it. */
export function aboutPart() {
  const list = h("dl", { class: "facts" });
  return {
    element: h("div", {}, list),
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
        ["maximum size", bytes(detail.parts.reduce((sum, part) => sum + part.max_bytes, 0))],
        ["largest message", bytes(detail.max_message_bytes)],
        ["deleted when idle for", detail.idle_s === null ? "never" : span(detail.idle_s)],
        ["status", row.status],
      ].filter(([, value]) => value !== null && value !== undefined);
      keyed(
        list,
        [
          ...facts.map(([word, value]) => ({ word, value })),
          { word: "created", at: detail.created_at },
          ...ignoredElements(detail),
          ...(detail.accessed_at ? [{ word: "last used", at: detail.accessed_at }] : []),
        ],
        (each) => each.word,
        (each) => h("div", {}, h("dt", {}, each.word), h("dd", {}, "at" in each ? ago(null) : "")),
        (element, each) =>
          "at" in each ? setAgo(element.lastChild.firstChild, each.at) : write(element.lastChild, each.value),
      );
    },
  };
}
