/** The settings of an entity. */

import { h, keyed, write } from "./dom.js";
import { ago, bytes, setAgo, span } from "./format.js";

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
          { word: "made", at: detail.created_at },
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
