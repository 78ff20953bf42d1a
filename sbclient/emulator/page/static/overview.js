/** The overview: pairs, namespaces and events. */

import { activity } from "./activity.js";
import { chart } from "./chart.js";
import { ask } from "./api.js";
import { commandHint, connectionPart } from "./connection.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { h, keyed, visible, write } from "./dom.js";
import { openCreate } from "./entity_form.js";
import { faultSwitches } from "./faults.js";
import { bytes, count, plural } from "./format.js";
import { addressOf } from "./names.js";
import { pairList } from "./pairs.js";
import { stateOfNamespace } from "./pictures.js";
import { state } from "./store.js";

const FIGURES = [
  ["active", "active"],
  ["locked", "locked"],
  ["scheduled", "scheduled"],
  ["deferred", "deferred"],
  ["dead", "dead-lettered"],
];

/** The view; call `update()` after each change. */
export function overview() {
  const pairs = pairList();
  const cards = new Map();
  const namespaces = h("div", { class: "cards" });
  const log = activity();
  const element = h(
    "div",
    { class: "view" },
    h("h1", { class: "hearable" }, "Overview"),
    pairs.element,
    namespaces,
    log.element,
  );
  return {
    element,
    title: "Overview",
    /** Scroll to the namespace in the address. */
    reveal(namespace) {
      cards.get(namespace)?.element.scrollIntoView();
    },
    update() {
      pairs.update();
      const make = ([name]) => {
        const made = card(name);
        cards.set(name, made);
        return made.element;
      };
      keyed(
        namespaces,
        [...state.namespaces],
        ([name]) => name,
        make,
        (_, [name, each]) => cards.get(name).update(each),
      );
      log.update();
    },
  };
}

function card(name) {
  const badge = h("span", { class: "state" });
  const profile = h("span", {});
  const figures = FIGURES.map(([key, word]) => ({ key, value: h("dd", {}), word: h("dt", {}, word) }));
  const size = h("dd", {});
  const throughput = chart(name);
  const switches = faultSwitches({ namespace: name, entity: null, fragment: null });
  const thrownCount = h("span", { class: "badge" });
  const hint = commandHint(name);
  const connection = connectionPart(name);
  const empty = h(
    "div",
    { class: "empty" },
    h("p", {}, "This namespace has no entities. Create one with the buttons above, in a program, or with:"),
    hint.element,
  );
  const create = (kind) =>
    openCreate(name, kind, [], ([path]) => {
      location.hash = addressOf(name, path);
    });
  const creating = ["queue", "topic"].map((kind) =>
    h("button", { type: "button", class: "quiet", onclick: () => create(kind) }, `New ${kind}…`),
  );
  const purge = async () => {
    const total = totals(state.namespaces.get(name).rows);
    const all =
      total.active + total.scheduled + total.deferred + total.dead + total.transfer + total.transfer_dead;
    const question = `Remove every message of ${name}?`;
    const sure = await confirmed(
      question,
      `${plural(all, "message")} will be deleted from all entities, with all dead letters. This cannot be undone.`,
      `Purge ${plural(all, "message")}`,
    );
    if (!sure) return;
    const done = await attempt(() => ask("POST", "purge", { namespace: name }, {}));
    if (done) notify(`Purged ${plural(done.purged, "message")} of ${name}.`);
  };
  const purgeButton = h("button", { type: "button", class: "quiet danger-text", onclick: purge }, "Purge…");
  const heal = () => attempt(() => ask("DELETE", "faults", { namespace: name }));
  const healAll = h("button", { type: "button", class: "quiet", onclick: heal }, "Heal all");
  const element = h(
    "section",
    { class: "panel card", "aria-label": `Namespace ${name}` },
    h(
      "div",
      { class: "panel-head" },
      h("h2", {}, visible(name)),
      h("span", { class: "push actions" }, ...creating, purgeButton),
    ),
    h("div", { class: "note about-namespace" }, badge, profile),
    connection.element,
    h(
      "dl",
      { class: "figures" },
      ...figures.map((each) => h("div", { class: `is-${each.key}` }, each.word, each.value)),
      h("div", {}, h("dt", {}, "size"), size),
    ),
    throughput.element,
    empty,
    h(
      "details",
      { class: "fault-box" },
      h("summary", {}, "Faults of the namespace ", thrownCount),
      switches.element,
      healAll,
    ),
  );
  return {
    element,
    update({ facts, rows, history }) {
      const total = totals(rows);
      const { word, kind } = stateOfNamespace({ facts, rows });
      badge.dataset.kind = kind;
      write(badge, word);
      write(
        profile,
        `${plural(rows.size, "entity", "entities")} · ${facts.profile}${facts.port ? ` · port ${facts.port}` : ""}`,
      );
      for (const each of figures) {
        write(each.value, count(total[each.key]));
        each.value.classList.toggle("none", !total[each.key]);
      }
      write(size, bytes(total.size_bytes));
      throughput.update(history);
      throughput.element.hidden = !rows.size;
      purgeButton.hidden = !rows.size;
      empty.hidden = rows.size > 0;
      hint.update("sbclient admin create queue orders");
      connection.update();
      switches.update();
      write(thrownCount, facts.faults.length || "");
      thrownCount.hidden = !facts.faults.length;
      healAll.hidden = !facts.faults.length;
    },
  };
}

function totals(rows) {
  const names = ["active", "locked", "scheduled", "deferred", "dead", "transfer", "transfer_dead", "size_bytes"];
  const sum = Object.fromEntries(names.map((name) => [name, 0]));
  for (const row of rows.values()) {
    for (const name of names) {
      if (name !== "size_bytes" || row.kind !== "subscription") sum[name] += row[name]; // the topic counts their bytes
    }
  }
  return sum;
}
