/** The overview: pairs, namespaces and events. */

import { Activity } from "./activity.js";
import { Chart } from "./chart.js";
import { ask } from "./api.js";
import { CommandHint, ConnectionString } from "./connection.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { openCreate } from "./entity_form.js";
import { FaultSwitches } from "./faults.js";
import { bytes, count, plural } from "./format.js";
import { addressOf } from "./names.js";
import { Pair } from "./pairs.js";
import { stateOfNamespace } from "./pictures.js";
import { state } from "./store.js";

const FIGURES = [
  ["active", "active"],
  ["locked", "locked"],
  ["scheduled", "scheduled"],
  ["deferred", "deferred"],
  ["dead", "dead-lettered"],
];
const STORED = ["active", "scheduled", "deferred", "dead", "transfer", "transfer_dead"];

/** The view. */
export function Overview() {
  return html`
    <div class="view">
      <h1 class="hearable">Overview</h1>
      <div class="pairs">
        ${state.pairs.map((pair) => html`<${Pair} key=${`${pair.primary}\n${pair.secondary}`} pair=${pair} />`)}
      </div>
      <div class="cards">
        ${[...state.namespaces].map(([name, known]) => html`<${Card} key=${name} name=${name} ...${known} />`)}
      </div>
      <${Activity} />
    </div>`;
}

function Card({ name, facts, rows, history }) {
  const total = totals(rows);
  const { word, kind } = stateOfNamespace({ facts, rows });
  const about = [plural(rows.size, "entity", "entities"), facts.profile, facts.port && `port ${facts.port}`];
  const create = (what) =>
    openCreate(name, what, [], ([path]) => {
      location.hash = addressOf(name, path);
    });
  const purge = async () => {
    const all = plural(STORED.reduce((sum, each) => sum + total[each], 0), "message");
    const explanation = `${all} will be deleted from all entities, with all dead letters. This cannot be undone.`;
    if (!(await confirmed(`Remove every message of ${name}?`, explanation, `Purge ${all}`))) return;
    const done = await attempt(() => ask("POST", "purge", { namespace: name }, {}));
    if (done) notify(`Purged ${plural(done.purged, "message")} of ${name}.`);
  };
  const heal = () => attempt(() => ask("DELETE", "faults", { namespace: name }));
  return html`
    <section class="panel card" aria-label="Namespace ${name}" id="namespace-${name}">
      <div class="panel-head">
        <h2>${visible(name)}</h2>
        <span class="push actions">
          <button type="button" class="quiet" onclick=${() => create("queue")}>New queue…</button>
          <button type="button" class="quiet" onclick=${() => create("topic")}>New topic…</button>
          <button type="button" class="quiet danger-text" hidden=${!rows.size} onclick=${purge}>Purge…</button>
        </span>
      </div>
      <div class="note about-namespace">
        <span class="state" data-kind=${kind}>${word}</span><span>${about.filter(Boolean).join(" · ")}</span>
      </div>
      <${ConnectionString} namespace=${name} />
      <dl class="figures">
        ${FIGURES.map(
          ([key, label]) => html`
            <div class="is-${key}">
              <dt>${label}</dt><dd class=${total[key] ? "" : "none"}>${count(total[key])}</dd>
            </div>`,
        )}
        <div><dt>size</dt><dd>${bytes(total.size_bytes)}</dd></div>
      </dl>
      <${Chart} what=${name} history=${history} hidden=${!rows.size} />
      <div class="empty" hidden=${rows.size > 0}>
        <p>This namespace has no entities. Create one with the buttons above, in a program, or with:</p>
        <${CommandHint} namespace=${name} command="sbclient admin create queue orders" />
      </div>
      <details class="fault-box">
        <summary>
          Faults of the namespace${" "}
          <span class="badge" hidden=${!facts.faults.length}>${facts.faults.length || ""}</span>
        </summary>
        <${FaultSwitches} namespace=${name} entity=${null} fragment=${null} />
        <button type="button" class="quiet" hidden=${!facts.faults.length} onclick=${heal}>Heal all</button>
      </details>
    </section>`;
}

function totals(rows) {
  const names = [...STORED, "locked", "size_bytes"];
  const sum = Object.fromEntries(names.map((name) => [name, 0]));
  for (const row of rows.values()) {
    for (const name of names) {
      if (name !== "size_bytes" || row.kind !== "subscription") sum[name] += row[name]; // the topic counts their bytes
    }
  }
  return sum;
}
