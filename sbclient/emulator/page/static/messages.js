/** The list of messages or dead letters of a queue, read without locks and kept up to date. */

import { ask } from "./api.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { h, keyed, visible, write } from "./dom.js";
import { ago, bytes, count, plural, setAgo } from "./format.js";
import { isSequenceNumber } from "./names.js";
import { isPartitioned, paced } from "./store.js";

const PAGE = 50;
const PAUSE_MS = 1200;

/** The columns that are hidden while they are empty, with their field. */
const OPTIONAL = [
  ["fragment", "fragment"],
  ["id", "message_id"],
  ["session", "session_id"],
  ["subject", "subject"],
];

/**
 * The list.
 *
 * @param place - `{namespace, path}`; the path may be that of a dead-letter queue.
 * @param kind - "messages" or "dead".
 * @param open - called with the sequence number of a message to show.
 * @param emptyText - returns the text that is shown if the list is empty.
 * @param emptyHint - an element below it.
 */
export function messageList(place, kind, open, emptyText, emptyHint = null) {
  const isDead = kind === "dead";
  const query = { order: isDead ? "newest" : "oldest", fragment: null, session: null, text: null };
  const chosen = new Set();
  let messages = [];
  let next = null;
  let isShown = false;
  let seen = null;
  let asked = 0;

  const order = h(
    "select",
    { "aria-label": "Order", onchange: reorder },
    h("option", { value: "oldest" }, "oldest first"),
    h("option", { value: "newest" }, "newest first"),
  );
  order.value = query.order;
  const chips = h("span", { class: "chips" });
  const all = h("input", {
    type: "checkbox",
    "aria-label": "Choose all shown messages",
    onchange: () => chooseAll(all.checked),
  });
  const remove = h("button", { type: "button", class: "quiet danger-text", onclick: removeChosen }, "Delete…");
  const resubmit = h("button", { type: "button", onclick: () => resubmitThese([...chosen]) }, "Resubmit");
  const resubmitAll = h("button", { type: "button", onclick: () => resubmitThese(null) }, "Resubmit all…");
  const purge = h("button", { type: "button", class: "quiet danger-text", onclick: purgeAll }, "Purge…");
  const selection = h(
    "span",
    { class: "selection", hidden: true },
    h("span", { class: "muted" }),
    isDead ? resubmit : null,
    remove,
  );
  const more = h("button", { type: "button", class: "quiet", onclick: () => loadMore() }, "Show more");
  const body = h("tbody");
  const heads = isDead
    ? ["number", "fragment", "reason", "id", "session", "enqueued", "size", "body"]
    : ["number", "fragment", "id", "session", "subject", "enqueued", "size", "body"];
  const table = h(
    "table",
    { class: "messages" },
    h("caption", { class: "hearable" }, isDead ? "Dead letters" : "Messages"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", { class: "choice" }, all),
        ...heads.map((head) => h("th", { scope: "col", class: `head-${head}` }, head)),
      ),
    ),
    body,
  );
  const emptyLine = h("p", {});
  const empty = h("div", { class: "empty", hidden: true }, emptyLine, emptyHint);
  const wanted = h("input", {
    type: "search",
    placeholder: "Filter: text, name=value, number",
    "aria-label": "Filter by text, property=value or sequence number",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => filter(),
  });
  const search = async (event) => {
    event.preventDefault();
    const text = wanted.value.trim();
    await filter();
    if (isSequenceNumber(text) && !messages.length) open(text);
  };
  const element = h(
    "div",
    { class: "message-list" },
    h(
      "div",
      { class: "toolbar" },
      order,
      h("form", { class: "find", role: "search", onsubmit: search }, wanted),
      chips,
      selection,
      h("span", { class: "push" }),
      isDead ? resubmitAll : null,
      isDead ? purge : null,
    ),
    h("div", { class: "scroll" }, table),
    empty,
    h("p", { class: "more" }, more),
  );
  const refresh = paced(() => isShown && load(true), PAUSE_MS);

  function filter() {
    query.text = wanted.value.trim() || null;
    return load();
  }

  function reorder() {
    query.order = order.value;
    load();
  }

  async function load(isQuiet = false) {
    const ticket = ++asked;
    const count = isQuiet ? Math.min(200, Math.max(PAGE, messages.length)) : PAGE;
    const page = await attempt(() => list(count, null));
    if (!page || ticket !== asked) return;
    messages = page.messages;
    next = page.next;
    show();
  }

  async function loadMore() {
    const page = await attempt(() => list(PAGE, next));
    if (!page) return;
    const known = new Set(messages.map((message) => message.sequence_number));
    messages = [...messages, ...page.messages.filter((message) => !known.has(message.sequence_number))];
    next = page.next;
    show();
  }

  async function list(count, places) {
    try {
      return await ask("GET", "messages", { namespace: place.namespace, entity: place.path, count, places, ...query });
    } catch (error) {
      if (error.status === 404) return { messages: [], next: null };
      throw error;
    }
  }

  function show() {
    const numbers = new Set(messages.map((message) => message.sequence_number));
    for (const number of chosen) if (!numbers.has(number)) chosen.delete(number);
    keyed(body, messages, (message) => message.sequence_number, makeRow, showRow);
    table.hidden = !messages.length;
    empty.hidden = messages.length > 0;
    const isFiltered = query.fragment !== null || query.session !== null || query.text !== null;
    write(emptyLine, isFiltered ? "No messages match the filter." : emptyText());
    if (emptyHint) emptyHint.classList.toggle("off", isFiltered);
    for (const [name, field] of OPTIONAL) {
      const isEmpty = messages.every((message) => (message[field] ?? null) === null);
      table.classList.toggle(`without-${name}`, name === "fragment" ? !isPartitioned(place) : isEmpty);
    }
    more.hidden = next === null;
    write(more, query.text === null ? "Show more" : "Search further");
    showChosen();
    showChips();
  }

  function showChosen() {
    selection.hidden = !chosen.size;
    write(selection.firstChild, `${count(chosen.size)} chosen`);
    all.checked = chosen.size > 0 && chosen.size === messages.length;
    all.indeterminate = chosen.size > 0 && chosen.size < messages.length;
    resubmitAll.disabled = purge.disabled = !messages.length;
  }

  function showChips() {
    const chip = (name, clear) =>
      h(
        "button",
        { type: "button", class: "chip", "aria-label": `${name}: show all again`, onclick: clear },
        `${name} ✕`,
      );
    chips.replaceChildren(
      ...(query.fragment === null ? [] : [chip(`fragment ${query.fragment}`, () => filters.clearFragment())]),
      ...(query.session === null ? [] : [chip(`session ${visible(query.session)}`, () => filters.session(null))]),
    );
  }

  function makeRow(message) {
    const number = message.sequence_number;
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose message ${number}`,
      onchange: () => toggle(number, box.checked),
    });
    const show = () => open(String(number));
    const cells = heads.map((head) => h("td", { class: `cell-${head}`, "data-head": head }));
    cells[0].append(h("button", { type: "button", class: "link", onclick: show }, String(number)));
    write(cells[1], message.fragment);
    cells[heads.indexOf("enqueued")].append(ago(null));
    return h(
      "tr",
      { onclick: (event) => !event.target.closest("input, button") && show() },
      h("td", { class: "choice" }, box),
      ...cells,
    );
  }

  function showRow(row, message) {
    const cell = (name) => row.children[1 + heads.indexOf(name)];
    row.firstChild.firstChild.checked = chosen.has(message.sequence_number);
    row.classList.toggle("held", message.is_locked);
    const state = message.is_locked ? "locked" : message.state === "active" ? "" : message.state;
    if (!isDead) write(cell("subject"), visible(message.subject ?? ""));
    else write(cell("reason"), visible(message.dead_letter_reason ?? "none given"));
    write(cell("id"), visible(message.message_id ?? ""));
    write(cell("session"), visible(message.session_id ?? ""));
    setAgo(cell("enqueued").firstChild, message.scheduled_at ?? message.enqueued_at);
    write(cell("size"), bytes(message.size_bytes));
    const place = cell("body");
    place.replaceChildren(
      ...(state ? [h("span", { class: `mark mark-${state}` }, state)] : []),
      ...(message.delivery_count ? [h("span", { class: "mark" }, `${message.delivery_count}× failed`)] : []),
      message.preview === null ? h("em", { class: "muted" }, "binary") : message.preview,
    );
  }

  function toggle(number, isChosen) {
    if (isChosen) chosen.add(number);
    else chosen.delete(number);
    showChosen();
  }

  function chooseAll(isChosen) {
    for (const message of messages) toggle(message.sequence_number, isChosen);
    show();
  }

  async function removeChosen() {
    const numbers = [...chosen];
    const what = plural(numbers.length, "message");
    if (
      !(await confirmed(
        `Delete ${what}?`,
        `They will be deleted from ${place.path}, also locked ones. This cannot be undone.`,
        `Delete ${what}`,
      ))
    )
      return;
    const done = await attempt(() =>
      ask("POST", "purge", { namespace: place.namespace }, { entity: place.path, sequence_numbers: numbers }),
    );
    if (done) notify(`Deleted ${plural(done.purged, "message")}.`);
    chosen.clear();
    load(true);
  }

  async function purgeAll() {
    const sure = await confirmed(
      "Purge these dead letters?",
      `All messages of ${place.path} will be deleted. This cannot be undone.`,
      "Purge all dead letters",
    );
    if (!sure) return;
    const done = await attempt(() => ask("POST", "purge", { namespace: place.namespace }, { entity: place.path }));
    if (done) notify(`Purged ${plural(done.purged, "dead letter")}.`);
    load(true);
  }

  async function resubmitThese(numbers) {
    const explanation =
      "Each returns to its queue as a new message: with a new time to live and no failed delivery.";
    if (numbers === null && !(await confirmed("Resubmit all dead letters?", explanation, "Resubmit all"))) return;
    const said = numbers === null ? { entity: place.path } : { entity: place.path, sequence_numbers: numbers };
    const done = await attempt(() => ask("POST", "resubmit", { namespace: place.namespace }, said));
    if (done) {
      const held = done.held ? `; ${count(done.held)} more are locked` : "";
      const sessionless = done.sessionless ? `; ${count(done.sessionless)} have no session and stay` : "";
      notify(`Resubmitted ${plural(done.resubmitted, "message")}${held}${sessionless}.`);
    }
    chosen.clear();
    load(true);
  }

  const filters = {
    clearFragment: () => {},
    fragment(index) {
      query.fragment = index;
      if (isShown) load();
    },
    session(id) {
      query.session = id;
      if (isShown) load();
    },
  };
  return {
    element,
    place,
    ...filters,
    onClearFragment(clear) {
      filters.clearFragment = clear;
    },
    /** Called when the list is shown or hidden. */
    shown(next) {
      isShown = next;
      if (next) load();
    },
    /** Reload if one of these numbers has changed. */
    update(...numbers) {
      const now = numbers.join();
      if (now === seen) return;
      seen = now;
      refresh();
    },
    reload: () => load(true),
  };
}
