/** The pairs: the current state of each, its entities, and the history of their states. */

import { recent } from "./chart.js";
import { html, visible } from "./dom.js";
import { Ago, count, now, rate, timeOfDay } from "./format.js";
import { flowPicture } from "./flow.js";
import { addressOf } from "./names.js";
import { Picture, stateOf, stateOfNamespace } from "./pictures.js";
import { ribbonPicture, spansOf } from "./ribbon.js";
import { rateOf, rowOf, state } from "./store.js";

const RIBBON_S = 600;
const HEADS = ["entity", "state", "since", "waiting", "oldest", "diverted /s", "last ping"];
const NUMBERS = new Set(["waiting", "diverted /s"]);
const STATE_AFTER = {
  "failover.suspected": "suspect",
  "failover.engaged": "failed_over",
  "failover.recovered": "healthy",
  "failover.cleared": "healthy",
};

/** One pair. */
export function Pair({ pair }) {
  const primary = state.namespaces.get(pair.primary);
  const [diverted, home] = [rateOf(pair, "arrived"), rateOf(pair, "left")];
  const direct = primary ? Math.max(0, recent(primary.history)[0] - home) : null;
  const flow = {
    primary: pair.primary,
    secondary: pair.secondary,
    isHere: pair.is_primary_here,
    state: primary ? stateOfNamespace(primary) : stateOf("up"),
    waiting: pair.queues.reduce((sum, queue) => sum + queue.waiting, 0),
    direct: direct !== null && direct < 0.02 ? 0 : direct,
    diverted,
    home,
  };
  const rows = rowsOf(pair);
  const history = historyOf(pair, primary, rows);
  return html`
    <section class="panel pair" aria-label="Pair of ${pair.primary} and ${pair.secondary}">
      <h2>${visible(pair.primary)}<span class="arrow">${" ⇄ "}</span>${visible(pair.secondary)}</h2>
      <${Picture} draw=${(width) => flowPicture(flow, width)} />
      <${Picture} draw=${(width) => ribbonPicture(history, width)}>${legendOf(pair)}<//>
      <div class="scroll">
        <table class="destinations" hidden=${!rows.length}>
          <caption class="hearable">Paired entities of ${pair.primary}</caption>
          <thead>
            <tr>
              ${HEADS.map((head) => html`<th scope="col" class=${NUMBERS.has(head) ? "number" : null}>${head}</th>`)}
            </tr>
          </thead>
          <tbody>${rows.map((row) => destination(pair, row))}</tbody>
        </table>
      </div>
      <p class="note">${noteOf(pair)}</p>
    </section>`;
}

function legendOf(pair) {
  const words = pair.client
    ? { good: "healthy", warn: "suspect: the failover interval", bad: "down, or failed over to the backlog" }
    : { good: "up", warn: "waiting in the backlog", bad: "down, or diverted now" };
  return html`
    <ul class="legend">
      ${Object.entries(words).map(([kind, word]) => html`<li><span class="swatch swatch-${kind}"></span>${word}</li>`)}
    </ul>`;
}

/** The rows of the entities: as reported by the client if there is a report, else as observed by the broker. */
function rowsOf(pair) {
  const seen = new Map(pair.destinations.map((each) => [each.path.toLowerCase(), each]));
  const rows = (pair.client?.entities ?? []).map(({ path, state: reported, since_at: sinceAt }) => {
    const destination = seen.get(path.toLowerCase()) ?? nothingSeen(path);
    seen.delete(path.toLowerCase());
    if (reported !== "healthy") return { ...destination, path, state: reported, since_at: sinceAt };
    // Not diverted: it fails and recovers with its namespace.
    const own = rowOf(pair.primary, path)?.state ?? "up";
    const from = state.namespaces.get(pair.primary)?.facts.states.at(-1)?.from ?? sinceAt;
    return { ...destination, path, state: own === "up" ? reported : own, since_at: Math.max(sinceAt, from) };
  });
  for (const destination of seen.values()) {
    rows.push({ ...destination, since_at: destination.states.at(-1).from });
  }
  return rows.sort((a, b) => (a.path < b.path ? -1 : 1));
}

function nothingSeen(path) {
  return { path, waiting: 0, oldest_at: null, states: [], ping: null };
}

function destination(pair, { path, state: name, since_at: since, waiting, oldest_at: oldest, ping }) {
  const { word, kind } = stateOf(name);
  const answer = ping === null ? "" : ping.refusal === null ? "accepted" : "refused";
  return html`
    <tr key=${path}>
      <th scope="row">
        ${pair.is_primary_here ? html`<a href=${addressOf(pair.primary, path)}>${visible(path)}</a>` : visible(path)}
      </th>
      <td><span class="state" data-kind=${kind}>${word}</span></td>
      <td><${Ago} at=${since} /></td>
      <td class="number">${count(waiting)}</td>
      <td><${Ago} at=${oldest} /></td>
      <td class="number">${rate(rateOf(pair, "to", path))}</td>
      <td>
        <span class="ping" data-kind=${ping?.refusal ? "bad" : "good"} title=${ping?.refusal ?? ""}>${answer}</span>
        ${" "}<${Ago} at=${ping?.at} class="muted" />
      </td>
    </tr>`;
}

function historyOf(pair, primary, rows) {
  const story = state.story;
  const to = story?.is_over ? story.started_at + story.elapsed_s : now();
  const from = story ? story.started_at : Math.max(to - RIBBON_S, firstKnown(pair, primary, to));
  const outage = story
    ? [
        { from: story.started_at, state: "up" },
        { from: story.outage.from_at, state: "down" },
        { from: story.outage.to_at, state: "up" },
      ].filter((each) => each.from <= to)
    : (primary?.facts.states ?? []);
  const ribbons = [{ name: pair.primary, spans: spansOf(outage, to) }];
  for (const row of rows) ribbons.push({ name: row.path, spans: spansOf(changesOf(pair, row, from, outage), to) });
  return {
    rows: ribbons,
    from,
    to,
    zero: story ? story.started_at : null,
    until: story ? Math.max(to, from + story.total_s) : to,
  };
}

function firstKnown(pair, primary, to) {
  const states = [...pair.destinations.map((each) => each.states), primary?.facts.states ?? []];
  return Math.min(to - 60, ...states.flatMap((each) => each.slice(0, 1).map((first) => first.from)));
}

/** The states of an entity. While the namespace is down, one that is not diverted is not healthy either. */
function changesOf(pair, row, from, outage) {
  if (!pair.client?.entities.some((each) => each.path === row.path)) {
    return row.states;
  }
  const events = pair.client.events.filter((event) => event.path === row.path && event.name in STATE_AFTER);
  const changes = events.map((event) => ({ from: event.at, state: STATE_AFTER[event.name] }));
  const own = [{ from, state: "healthy" }, ...changes];
  const stateAt = (changes, at) => changes.findLast((each) => each.from <= at)?.state;
  const times = [...own, ...outage].map((each) => each.from).filter((at) => at >= from);
  return times
    .sort((a, b) => a - b)
    .map((at) => {
      const [mine, around] = [stateAt(own, at), stateAt(outage, at) ?? "up"];
      return { from: at, state: mine === "healthy" && around !== "up" ? around : mine };
    })
    .filter((each, at, all) => each.state !== all[at - 1]?.state);
}

function noteOf(pair) {
  const dead = pair.queues.reduce((sum, queue) => sum + queue.dead, 0);
  const parts = [];
  if (!pair.client) {
    parts.push(
      "The clients decide about the failover. This view shows what the broker observes: backlog and pings.",
    );
  }
  for (const { path, elsewhere_at: since } of pair.destinations) {
    if (since) parts.push(`${visible(path)}: delivered to the secondary since ${timeOfDay(since)}.`);
  }
  if (pair.unread) parts.push(`${count(pair.unread)} more wait that were not read yet.`);
  if (dead) parts.push(`${count(dead)} in the backlog are dead-lettered: the syphon cannot forward them.`);
  if (pair.client?.quarantined.length) parts.push(`Quarantined: ${pair.client.quarantined.join(", ")}.`);
  if (pair.client?.provisioning_error) {
    parts.push(`Sends cannot be diverted, the backlog queues are not provisioned: ${pair.client.provisioning_error}.`);
  }
  if (pair.client?.never_reached) parts.push("The primary has not answered this client yet.");
  return parts.join(" ");
}
