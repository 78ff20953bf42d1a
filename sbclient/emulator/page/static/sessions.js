/** The sessions of an entity: locks, waiting messages, and the size of the state. */

import { ask } from "./api.js";
import { attempt } from "./dialogs.js";
import { h, keyed, visible, write } from "./dom.js";
import { ago, bytes, count, plural, setAgo } from "./format.js";
import { paced } from "./store.js";

const PAUSE_MS = 1200;
const HEADS = ["session", "messages", "locked", "state", "fragment"];
const NUMBERS = new Set(["messages", "fragment"]);

/**
 * The list.
 *
 * @param choose - called with the id of the session to show messages of.
 */
export function sessionList(place, choose) {
  const filter = h("input", {
    type: "search",
    placeholder: "Begins with",
    "aria-label": "Sessions that begin with",
    oninput: () => refresh(),
  });
  const body = h("tbody");
  const note = h("p", { class: "note" });
  const empty = h("p", { class: "empty", hidden: true });
  const table = h(
    "table",
    { class: "sessions" },
    h("caption", { class: "hearable" }, "Sessions"),
    h(
      "thead",
      {},
      h("tr", {}, ...HEADS.map((head) => h("th", { scope: "col", class: NUMBERS.has(head) ? "number" : null }, head))),
    ),
    body,
  );
  const element = h(
    "div",
    {},
    h("div", { class: "toolbar" }, filter),
    h("div", { class: "scroll" }, table),
    empty,
    note,
  );
  let isShown = false;
  let seen = null;
  const refresh = paced(() => isShown && load(), PAUSE_MS);

  async function load() {
    const said = await attempt(() =>
      ask("GET", "sessions", { namespace: place.namespace, entity: place.path, prefix: filter.value || null }),
    );
    if (!said) return;
    keyed(
      body,
      said.sessions,
      (session) => session.session_id,
      (session) => line(session, choose),
      showLine,
    );
    table.hidden = !said.sessions.length;
    empty.hidden = said.sessions.length > 0;
    write(
      empty,
      filter.value
        ? "No session id begins with that text."
        : "No sessions. The first message with a session id creates one: send one.",
    );
    write(
      note,
      said.count > said.sessions.length
        ? `The first ${count(said.sessions.length)} of ${plural(said.count, "session")}.`
        : "",
    );
  }
  return {
    element,
    shown(next) {
      isShown = next;
      if (next) load();
    },
    update(...numbers) {
      const now = numbers.join();
      if (now === seen) return;
      seen = now;
      refresh();
    },
  };
}

function line(session, choose) {
  const show = () => choose(session.session_id);
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h("button", { type: "button", class: "link", onclick: show }, visible(session.session_id)),
    ),
    h("td", { class: "number" }),
    h("td", {}, h("span", {}), " ", ago(null, "muted")),
    h("td", {}),
    h("td", { class: "number" }),
  );
}

function showLine(row, session) {
  const [, messages, locked, stored, fragment] = row.children;
  write(messages, count(session.message_count));
  write(locked.firstChild, session.is_locked ? `held, ${plural(session.held_count, "message")} taken` : "free");
  setAgo(locked.lastChild, session.locked_until);
  locked.lastChild.hidden = session.locked_until === null;
  write(stored, session.state_bytes === null ? "none" : bytes(session.state_bytes));
  write(fragment, session.fragment);
}
