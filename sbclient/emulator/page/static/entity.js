/** One entity: its numbers, fragments, throughput and messages. */

import { aboutPart } from "./about.js";
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { commandHint, quoted } from "./connection.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { h, keyed, visible, write } from "./dom.js";
import { deleteEntity, openChange } from "./entity_form.js";
import { faultSwitches } from "./faults.js";
import { bytes, count, plural } from "./format.js";
import { fragments } from "./fragments.js";
import { openMessage } from "./message.js";
import { messageList } from "./messages.js";
import { addressOf } from "./names.js";
import { stateOf } from "./pictures.js";
import { openSend } from "./send.js";
import { sessionList } from "./sessions.js";
import { rowOf, state } from "./store.js";
import { tabBar } from "./tabs.js";
import { ruleList, splitPath, subscriptionList } from "./topic.js";

const FIGURES = [
  ["active", "active"],
  ["locked", "locked"],
  ["scheduled", "scheduled"],
  ["deferred", "deferred"],
  ["dead", "dead-lettered"],
  ["sessions", "sessions"],
];

const STORED = ["active", "scheduled", "deferred", "dead", "transfer", "transfer_dead"];

/** The figures that a topic has, which stores only scheduled messages. */
const OF_TOPIC = ["scheduled"];

/**
 * The view; call `update()` after each change, `open(tab, number)` to open a tab or a message, `close()` at the end.
 *
 * @param go - `show(address)` and `leave(address)`: go to an address, or back from it.
 */
export function entityView(namespace, path, go) {
  let wanted = null; // the tab and message in the address, until the entity is loaded
  let opened = null; // the message that is shown
  let chosen = null; // the fragment
  const isSubscription = /\/subscriptions\//i.test(path);
  const badge = h("span", { class: "state" });
  const badges = h("span", { class: "badges" });
  const figures = FIGURES.map(([key, word]) => ({
    key,
    box: h("div", { class: `is-${key}` }, h("dt", {}, word), h("dd", {})),
  }));
  const size = h("div", {}, h("dt", {}, "size"), h("dd", {}));
  const throughput = chart(path);
  const missing = h(
    "p",
    { class: "panel empty", role: "status", hidden: true },
    `${path} does not exist in ${namespace}: it was deleted, or not created yet. `,
    h("a", { href: "#/" }, "Back to the overview"),
  );

  const hint = commandHint(namespace);
  const openNumber = (tab) => (number) => go.show(addressOf(namespace, path, tab, number));
  const emptyText = () => {
    if (isSubscription) return "No messages. Send one to the topic, which arrives here if a rule accepts it:";
    if (rowOf(namespace, path)?.kind !== "topic") return "No messages. Send one with the button above, or with:";
    return "No scheduled messages; others go to the subscriptions. Send one with the button above, or with:";
  };
  const messages = messageList({ namespace, path }, "messages", openNumber("messages"), emptyText, hint.element);
  const dead = messageList(
    { namespace, path: `${path}/$DeadLetterQueue` },
    "dead",
    openNumber("dead"),
    () =>
      "No dead letters. Messages arrive here after too many failed deliveries, when they expire (if the entity is " +
      "set so), or when a receiver dead-letters them.",
  );
  const sessions = sessionList({ namespace, path }, (id) => {
    messages.session(id);
    go.show(addressOf(namespace, path, "messages"));
  });
  const subscriptions = subscriptionList(namespace, path);
  const rules = ruleList(namespace, path);
  const faultPlace = h("div", { class: "fault-place" });
  let switches = faultSwitches({ namespace, entity: path, fragment: null });
  faultPlace.append(switches.element);
  const about = aboutPart();
  const picture = fragments(chooseFragment);
  const faultHead = h("p", { class: "note" });
  messages.onClearFragment(() => picture.clear() ?? chooseFragment(null));
  dead.onClearFragment(() => picture.clear() ?? chooseFragment(null));

  const panels = {
    subscriptions: h("div", {}, subscriptions.element),
    messages: h("div", {}, messages.element),
    dead: h("div", {}, dead.element),
    sessions: h("div", {}, sessions.element),
    rules: h("div", {}, rules.element),
    faults: h("div", {}, faultHead, faultPlace),
    about: h("div", {}, about.element),
  };
  const bar = tabBar(
    [
      { id: "subscriptions", name: "Subscriptions", panel: panels.subscriptions },
      { id: "messages", name: "Messages", panel: panels.messages },
      { id: "dead", name: "Dead letters", panel: panels.dead },
      { id: "sessions", name: "Sessions", panel: panels.sessions },
      { id: "rules", name: "Rules", panel: panels.rules },
      { id: "faults", name: "Faults", panel: panels.faults },
      { id: "about", name: "About", panel: panels.about },
    ],
    (id, isByUser) => {
      messages.shown(id === "messages");
      dead.shown(id === "dead");
      sessions.shown(id === "sessions");
      if (isByUser) go.show(addressOf(namespace, path, id));
    },
  );

  function chooseFragment(index) {
    messages.fragment(index);
    dead.fragment(index);
    switches = faultSwitches({ namespace, entity: path, fragment: index });
    faultPlace.replaceChildren(switches.element);
    switches.update();
    chosen = index;
    showFaultHead();
  }

  function hasTab(row, tab) {
    if (tab === "sessions") return row.requires_session;
    if (tab === "subscriptions") return row.kind === "topic";
    if (tab === "rules") return row.kind === "subscription";
    return tab === "dead" ? row.kind !== "topic" : Object.hasOwn(panels, tab);
  }

  function openTab(row, tab) {
    bar.open(hasTab(row, tab) ? tab : row.kind === "topic" ? "subscriptions" : "messages");
  }

  /** Show the message in the address, or none. */
  async function showMessage(tab, number) {
    if (opened?.number === number && opened?.tab === tab) return;
    const before = opened;
    opened = number === null ? null : { tab, number };
    before?.close?.();
    if (number === null) return;
    const mine = opened;
    const list = tab === "dead" ? dead : messages;
    const closed = () => {
      if (opened !== mine) return;
      opened = null;
      go.leave(addressOf(namespace, path, tab));
    };
    const close = await openMessage(list.place, number, list.reload, closed);
    mine.close = close;
    if (opened !== mine) close();
  }

  function showFaultHead() {
    const isPartitioned = rowOf(namespace, path)?.fragments > 1;
    const more = isPartitioned ? " Choose a fragment in the picture above to affect it alone." : "";
    write(
      faultHead,
      chosen === null ? `Faults of the whole entity.${more}` : `Faults of fragment ${chosen} alone.`,
    );
  }

  /** The number of all messages, or of the dead letters, of the entity and of its subscriptions. */
  function countOf(what) {
    const names = what === "dead" ? ["dead"] : STORED;
    const isHere = (row) => row.path === path || row.path.startsWith(`${path}/Subscriptions/`);
    const rows = [...state.namespaces.get(namespace).rows.values()].filter(isHere);
    return rows.flatMap((row) => names.map((name) => row[name])).reduce((sum, each) => sum + each, 0);
  }

  const send = () => openSend(namespace, path, messages.reload);
  const purge = async () => {
    const below = rowOf(namespace, path).kind === "topic" ? " of it and of its subscriptions" : "";
    const [all, buried] = [plural(countOf("stored"), "message"), plural(countOf("dead"), "dead letter")];
    const explanation =
      `${all}${below} will be deleted, with ${buried} and with locked messages. This cannot be undone.`;
    if (!(await confirmed(`Purge ${path}?`, explanation, "Purge"))) return;
    const done = await attempt(() => ask("POST", "purge", { namespace }, { entity: path }));
    if (done) notify(`Purged ${plural(done.purged, "message")} of ${path}.`);
    messages.reload();
  };
  const sendButton = h("button", { type: "button", class: "primary", onclick: send }, "Send…");
  const fragmentPart = h(
    "section",
    { class: "panel", "aria-label": "Fragments" },
    h("h2", {}, "Fragments"),
    h("div", { class: "fragment-box" }, picture.element),
    legend(),
  );
  const change = () => openChange(namespace, path);
  const remove = async () => {
    const { kind } = rowOf(namespace, path);
    const parts = [plural(countOf("stored"), "message")];
    if (kind === "topic") parts.push(plural(state.detail?.subscriptions?.length ?? 0, "subscription"));
    const explanation = `The ${kind} will be deleted with ${parts.join(" and ")}.`;
    if (await deleteEntity(namespace, path, explanation)) go.show("#/");
  };
  const content = h(
    "div",
    { class: "content" },
    h(
      "section",
      { class: "panel at-a-glance", "aria-label": `Numbers of ${path}` },
      h("dl", { class: "figures" }, ...figures.map((each) => each.box), size),
      throughput.element,
    ),
    fragmentPart,
    h("section", { class: "panel tabbed", "aria-label": `Contents of ${path}` }, bar.element, ...Object.values(panels)),
  );
  const toNamespace = h("a", { href: `#/${encodeURIComponent(namespace)}` }, visible(namespace));
  const actions = h(
    "span",
    { class: "push actions" },
    h("button", { type: "button", class: "danger-text", onclick: remove }, "Delete…"),
    h("button", { type: "button", class: "danger-text", onclick: purge }, "Purge…"),
    h("button", { type: "button", onclick: change }, "Change…"),
    isSubscription ? null : sendButton,
  );
  const element = h(
    "div",
    { class: "view" },
    h(
      "div",
      { class: "view-head" },
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / ", toNamespace),
      h("h1", {}, visible(path)),
      badge,
      badges,
      actions,
    ),
    missing,
    content,
  );
  for (const id of ["sessions", "subscriptions", "rules"]) bar.show(id, false);
  return {
    element,
    title: path,
    open(tab, number) {
      const row = rowOf(namespace, path);
      wanted = row ? null : { tab, number };
      if (!row) return;
      openTab(row, tab);
      showMessage(tab, number);
    },
    close() {
      showMessage(null, null);
    },
    send: () => !isSubscription && !content.hidden && send(),
    reload: () => messages.reload(),
    update() {
      const row = rowOf(namespace, path);
      missing.hidden = row !== undefined || state.link !== "live";
      for (const part of [content, actions, badge, badges]) part.hidden = row === undefined;
      if (!row) return;
      if (wanted !== null) this.open(wanted.tab, wanted.number);
      showHead(badge, badges, row);
      for (const { key, box } of figures) {
        write(box.lastChild, count(row[key]));
        box.lastChild.classList.toggle("none", !row[key]);
        box.hidden = row.kind === "topic" ? !OF_TOPIC.includes(key) : key === "sessions" && !row.requires_session;
      }
      write(size.lastChild, bytes(row.size_bytes));
      throughput.update(state.detailHistory);
      fragmentPart.hidden = row.fragments < 2;
      for (const id of ["sessions", "dead", "subscriptions", "rules"]) bar.show(id, hasTab(row, id));
      const stored = row.active + row.scheduled + row.deferred;
      bar.badge("messages", stored ? count(stored) : "");
      hint.update(sendCommand(row));
      bar.badge("dead", row.dead ? count(row.dead) : "");
      bar.badge("sessions", row.sessions ? count(row.sessions) : "");
      messages.update(row.arrived, row.left, row.locked, row.scheduled, row.deferred);
      dead.update(row.dead, row.left);
      sessions.update(row.arrived, row.left, row.locked, row.sessions);
      switches.update();
      showFaultHead();
      if (state.detail?.path.toLowerCase() === path.toLowerCase()) {
        picture.update(state.detail.parts);
        about.update(row, state.detail);
        subscriptions.update(state.detail);
        rules.update(state.detail);
        bar.badge("subscriptions", state.detail.subscriptions?.length ?? "");
        bar.badge("rules", state.detail.rules?.length ?? "");
      }
    },
  };
}

function showHead(badge, badges, row) {
  const { word, kind } = stateOf(row.state);
  badge.dataset.kind = kind;
  write(badge, row.is_partial ? `${word}, partly` : word);
  const said = [
    row.kind,
    row.status === "Active" ? null : row.status,
    row.fragments > 1 ? `partitioned, ${row.fragments} fragments` : null,
    row.requires_session ? "sessions" : null,
    row.forwards_to ? `forwards to ${visible(row.forwards_to)}` : null,
  ].filter(Boolean);
  keyed(
    badges,
    said,
    (each) => each,
    (each) => h("span", { class: "badge" }, each),
  );
}

/** The command that sends a message to a queue or topic, or to the topic of a subscription. */
function sendCommand(row) {
  const [path] = splitPath(row.path);
  const session = row.requires_session ? " --set session_id=a" : "";
  return `sbclient send --${row.kind === "queue" ? "queue" : "topic"} ${quoted(path)} --body hello${session}`;
}

function legend() {
  const key = (name, word) => h("li", {}, h("span", { class: `swatch swatch-${name}` }), word);
  return h(
    "ul",
    { class: "legend" },
    key("active", "active"),
    key("locked", "locked by a receiver"),
    key("scheduled", "scheduled"),
    key("deferred", "deferred"),
  );
}
