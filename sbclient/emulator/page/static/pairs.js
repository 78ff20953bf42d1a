/** The pairs: the current state of each, its entities, and the history of their states. */

import { recent } from "./chart.js";
import { h, keyed, visible, write } from "./dom.js";
import { ago, count, now, rate, setAgo } from "./format.js";
import { flowPicture } from "./flow.js";
import { addressOf } from "./names.js";
import { stateOf, stateOfNamespace } from "./pictures.js";
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

/** All pairs; call `update()` after each change. */
export function pairList() {
  const element = h("div", { class: "pairs" });
  const cards = new Map();
  return {
    element,
    update() {
      const keyOf = (pair) => `${pair.primary}\n${pair.secondary}`;
      const make = (pair) => {
        const made = card(pair);
        cards.set(keyOf(pair), made);
        return made.element;
      };
      keyed(element, state.pairs, keyOf, make, (_, pair) => cards.get(keyOf(pair)).update(pair));
    },
  };
}

function card(pair) {
  const flowPlace = h("div", { class: "picture" });
  const ribbonPlace = h("div", { class: "picture" });
  const flow = flowPicture(flowPlace);
  const ribbon = ribbonPicture(ribbonPlace);
  const body = h("tbody");
  const note = h("p", { class: "note" });
  flowPlace.append(flow.element);
  ribbonPlace.append(ribbon.element, ribbonLegend(pair));
  const element = h(
    "section",
    { class: "panel pair", "aria-label": `Pair of ${pair.primary} and ${pair.secondary}` },
    h("h2", {}, visible(pair.primary), h("span", { class: "arrow" }, " ⇄ "), visible(pair.secondary)),
    flowPlace,
    ribbonPlace,
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "destinations" },
        h("caption", { class: "hearable" }, `Paired entities of ${pair.primary}`),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...HEADS.map((head) => h("th", { scope: "col", class: NUMBERS.has(head) ? "number" : null }, head)),
          ),
        ),
        body,
      ),
    ),
    note,
  );
  return {
    element,
    update(latest) {
      const primary = state.namespaces.get(latest.primary);
      const [diverted, home] = [rateOf(latest, "arrived"), rateOf(latest, "left")];
      const direct = primary ? Math.max(0, recent(primary.history)[0] - home) : null;
      flow.update({
        primary: latest.primary,
        secondary: latest.secondary,
        isHere: latest.is_primary_here,
        state: primary ? stateOfNamespace(primary) : stateOf("up"),
        waiting: latest.queues.reduce((sum, queue) => sum + queue.waiting, 0),
        direct: direct !== null && direct < 0.02 ? 0 : direct,
        diverted,
        home,
      });
      const rows = rowsOf(latest);
      body.parentElement.hidden = !rows.length;
      keyed(
        body,
        rows,
        (row) => row.path,
        (row) => line(latest, row),
        (element, row) => showLine(element, row, rateOf(latest, "to", row.path)),
      );
      ribbon.update(historyOf(latest, primary, rows));
      write(note, noteOf(latest));
    },
  };
}

function ribbonLegend(pair) {
  const words = pair.client
    ? [
        ["good", "healthy"],
        ["warn", "suspect: the failover interval"],
        ["bad", "down, or failed over to the backlog"],
      ]
    : [
        ["good", "up"],
        ["warn", "waiting in the backlog"],
        ["bad", "down, or diverted now"],
      ];
  return h(
    "ul",
    { class: "legend" },
    ...words.map(([kind, word]) => h("li", {}, h("span", { class: `swatch swatch-${kind}` }), word)),
  );
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

function line(pair, row) {
  const name = pair.is_primary_here
    ? h("a", { href: addressOf(pair.primary, row.path) }, visible(row.path))
    : visible(row.path);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, name),
    h("td", {}, h("span", { class: "state" })),
    h("td", {}, ago(null)),
    h("td", { class: "number" }),
    h("td", {}, ago(null)),
    h("td", { class: "number" }),
    h("td", {}, h("span", { class: "ping" }), " ", ago(null, "muted")),
  );
}

function showLine(element, row, divertedPerS) {
  const [, place, since, waiting, oldest, diverted, ping] = element.children;
  const { word, kind } = stateOf(row.state);
  place.firstChild.dataset.kind = kind;
  write(place.firstChild, word);
  setAgo(since.firstChild, row.since_at);
  write(waiting, count(row.waiting));
  setAgo(oldest.firstChild, row.oldest_at);
  write(diverted, rate(divertedPerS));
  write(ping.firstChild, row.ping === null ? "" : row.ping.refusal === null ? "accepted" : "refused");
  ping.firstChild.dataset.kind = row.ping?.refusal ? "bad" : "good";
  ping.firstChild.title = row.ping?.refusal ?? "";
  setAgo(ping.lastChild, row.ping?.at ?? null);
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
  if (pair.unread) parts.push(`${count(pair.unread)} more wait that were not read yet.`);
  if (dead) parts.push(`${count(dead)} in the backlog are dead-lettered: the syphon cannot forward them.`);
  if (pair.client?.quarantined.length) parts.push(`Quarantined: ${pair.client.quarantined.join(", ")}.`);
  if (pair.client?.provisioning_error) {
    parts.push(`Sends cannot be diverted, the backlog queues are not provisioned: ${pair.client.provisioning_error}.`);
  }
  if (pair.client?.never_reached) parts.push("The primary has not answered this client yet.");
  return parts.join(" ");
}
