/** One entity: its numbers, fragments, throughput and messages. */

import { aboutPart } from "./about.js";
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { h, keyed, visible, write } from "./dom.js";
import { faultSwitches } from "./faults.js";
import { bytes, count, plural } from "./format.js";
import { fragments } from "./fragments.js";
import { messageList } from "./messages.js";
import { stateOf } from "./pictures.js";
import { openSend } from "./send.js";
import { sessionList } from "./sessions.js";
import { rowOf, state } from "./store.js";
import { tabBar } from "./tabs.js";

const FIGURES = [
  ["active", "active"],
  ["locked", "locked"],
  ["scheduled", "scheduled"],
  ["dead", "dead-lettered"],
  ["sessions", "sessions"],
];

/**
 * The view; call `update()` after each change, and `open(tab)` to open a tab.
 *
 * @param moved - called with the id of a tab that the user opened, for the address.
 */
export function entityView(namespace, path, moved) {
  let wanted = null; // the tab in the address, until the entity is loaded
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

  const messages = messageList({ namespace, path }, "messages", emptyText(path, isSubscription));
  const dead = messageList(
    { namespace, path: `${path}/$DeadLetterQueue` },
    "dead",
    "No dead letters. Messages arrive here after too many failed deliveries, when they expire (if the entity is set " +
      "so), or when a receiver dead-letters them.",
  );
  const sessions = sessionList({ namespace, path }, (id) => {
    messages.session(id);
    bar.open("messages", true);
  });
  const faultPlace = h("div", { class: "fault-place" });
  let switches = faultSwitches({ namespace, entity: path, fragment: null });
  faultPlace.append(switches.element);
  const about = aboutPart();
  const picture = fragments(chooseFragment);
  const single = h("p", { class: "note" });
  const faultHead = h("p", { class: "note" });
  messages.onClearFragment(() => picture.clear() ?? chooseFragment(null));
  dead.onClearFragment(() => picture.clear() ?? chooseFragment(null));

  const panels = {
    messages: h("div", {}, messages.element),
    dead: h("div", {}, dead.element),
    sessions: h("div", {}, sessions.element),
    faults: h("div", {}, faultHead, faultPlace),
    about: h("div", {}, about.element),
  };
  const bar = tabBar(
    [
      { id: "messages", name: "Messages", panel: panels.messages },
      { id: "dead", name: "Dead letters", panel: panels.dead },
      { id: "sessions", name: "Sessions", panel: panels.sessions },
      { id: "faults", name: "Faults", panel: panels.faults },
      { id: "about", name: "About", panel: panels.about },
    ],
    (id, isByUser) => {
      messages.shown(id === "messages");
      dead.shown(id === "dead");
      sessions.shown(id === "sessions");
      if (isByUser) moved(id);
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
    return tab === "dead" ? row.kind !== "topic" : tab in panels;
  }

  function showFaultHead() {
    const isPartitioned = rowOf(namespace, path)?.fragments > 1;
    const more = isPartitioned ? " Choose a fragment in the picture above to affect it alone." : "";
    write(
      faultHead,
      chosen === null ? `Faults of the whole entity.${more}` : `Faults of fragment ${chosen} alone.`,
    );
  }

  const send = () => openSend(namespace, path, messages.reload);
  const purge = async () => {
    const row = rowOf(namespace, path);
    const all = row.active + row.scheduled + row.dead + row.transfer + row.transfer_dead;
    const below = row.kind === "topic" ? ", and those of its subscriptions," : "";
    const explanation =
      `${plural(all, "message")}${below} will be deleted, with ${plural(row.dead, "dead letter")} ` +
      "and with locked messages. This cannot be undone.";
    if (!(await confirmed(`Purge ${path}?`, explanation, "Purge"))) return;
    const done = await attempt(() => ask("POST", "purge", { namespace }, { entity: path }));
    if (done) notify(`Purged ${plural(done.purged, "message")} of ${path}.`);
    messages.reload();
  };
  const sendButton = h("button", { type: "button", class: "primary", onclick: send }, "Send…");
  const content = h(
    "div",
    { class: "content" },
    h(
      "section",
      { class: "panel at-a-glance" },
      h("dl", { class: "figures" }, ...figures.map((each) => each.box), size),
      throughput.element,
    ),
    h(
      "section",
      { class: "panel" },
      h("h2", {}, "Fragments"),
      h("div", { class: "fragment-box" }, picture.element, single),
      legend(),
    ),
    h("section", { class: "panel tabbed" }, bar.element, ...Object.values(panels)),
  );
  const actions = h(
    "span",
    { class: "push actions" },
    h("button", { type: "button", class: "danger-text", onclick: purge }, "Purge…"),
    isSubscription ? null : sendButton,
  );
  const element = h(
    "div",
    { class: "view" },
    h(
      "div",
      { class: "view-head" },
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / ", visible(namespace)),
      h("h1", {}, visible(path)),
      badge,
      badges,
      actions,
    ),
    missing,
    content,
  );
  bar.show("sessions", false);
  return {
    element,
    title: path,
    open(tab) {
      wanted = tab;
      const row = rowOf(namespace, path);
      if (row) bar.open(hasTab(row, tab) ? tab : "messages");
    },
    send: () => !isSubscription && !content.hidden && send(),
    reload: () => messages.reload(),
    update() {
      const row = rowOf(namespace, path);
      missing.hidden = row !== undefined || state.link !== "live";
      for (const part of [content, actions, badge, badges]) part.hidden = row === undefined;
      if (!row) return;
      if (wanted !== null) this.open(wanted);
      wanted = null;
      showHead(badge, badges, row);
      for (const { key, box } of figures) {
        write(box.lastChild, count(row[key]));
        box.lastChild.classList.toggle("none", !row[key]);
        box.hidden = key === "sessions" && !row.requires_session;
      }
      write(size.lastChild, bytes(row.size_bytes));
      throughput.update(row.history);
      bar.show("sessions", hasTab(row, "sessions"));
      bar.show("dead", hasTab(row, "dead"));
      bar.badge("messages", row.active + row.scheduled ? count(row.active + row.scheduled) : "");
      bar.badge("dead", row.dead ? count(row.dead) : "");
      bar.badge("sessions", row.sessions ? count(row.sessions) : "");
      messages.update(row.arrived, row.left, row.locked, row.scheduled);
      dead.update(row.dead, row.left);
      sessions.update(row.arrived, row.left, row.locked, row.sessions);
      switches.update();
      showFaultHead();
      if (state.detail?.path.toLowerCase() === path.toLowerCase()) {
        picture.update(state.detail.parts);
        const [first, ...others] = state.detail.parts;
        single.hidden = others.length > 0;
        write(
          single,
          `Not partitioned: one fragment with ${bytes(first.size_bytes)} of ${bytes(first.max_bytes)}.`,
        );
        about.update(row, state.detail);
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

function emptyText(path, isSubscription) {
  return isSubscription
    ? "No messages. Send one to the topic; it arrives here if the rules of this subscription accept it."
    : `No messages. Send one with the button above, or: sbclient send --queue ${path}`;
}

function legend() {
  const key = (name, word) => h("li", {}, h("span", { class: `swatch swatch-${name}` }), word);
  return h(
    "ul",
    { class: "legend" },
    key("active", "active"),
    key("locked", "locked by a receiver"),
    key("scheduled", "scheduled"),
  );
}
