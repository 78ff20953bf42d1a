/** The state of the emulator, updated by the stream, for all views. */

import { Refused, watch } from "./api.js";
import { setClock } from "./format.js";

const EVENTS_KEPT = 300;
const HISTORY_KEPT = 1500;
const PAUSES_MS = [250, 500, 1000, 2000, 4000];

export const state = {
  link: "connecting",
  reason: null,
  about: { http_port: null, ports: {} },
  namespaces: new Map(),
  pairs: [],
  detail: null,
  story: null,
  events: [],
  at: 0,
};

const listeners = new Set();
let stop = null;

/** Subscribe to changes; called with the changed entities: `{paths}`, a set for each namespace by name. */
export function listen(changed) {
  listeners.add(changed);
  return () => listeners.delete(changed);
}

/** The row of an entity, or undefined. */
export function rowOf(namespace, path) {
  return state.namespaces.get(namespace)?.rows.get(path);
}

/** Virtual seconds per real second; 1 except in a demonstration. */
export function speed() {
  return state.story?.speed ?? 1;
}

/** Stop the clock at the end of a demonstration, so that relative times stay the same. */
function takeTime(at) {
  const { story } = state;
  if (story?.is_over) setClock(story.started_at + story.elapsed_s, 0);
  else setClock(at, speed());
}

/** Watch everything, and one entity in detail; call again to change the entity. */
export function lookAt(namespace = null, entity = null) {
  stop?.abort();
  stop = new AbortController();
  if (state.detail && (state.detail.namespace !== namespace || state.detail.path !== entity)) state.detail = null;
  keepWatching({ namespace, entity }, stop.signal);
}

async function keepWatching(query, signal) {
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      await watch(query, signal, (name, said) => {
        failures = 0;
        if (name === "about") state.about = said;
        else if (name === "snapshot") take(said);
      });
    } catch (error) {
      if (signal.aborted) return;
      const isSilent = error.name === "AbortError";
      setLink(
        "lost",
        isSilent ? "The emulator does not send anything." : error.message,
        error instanceof Refused ? error.status : 0,
      );
    }
    const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)];
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

function setLink(link, reason = null) {
  if (state.link === link && state.reason === reason) return;
  state.link = link;
  state.reason = reason;
  publish({ paths: new Map() });
}

function take(said) {
  const before = state.at;
  state.at = said.at;
  state.link = "live";
  state.reason = null;
  if ("story" in said) state.story = said.story;
  takeTime(said.at);
  const paths = new Map(said.namespaces.map((each) => [each.name, new Set()]));
  if (said.is_whole) forgetMissing(said.namespaces, paths);
  for (const each of said.namespaces) takeNamespace(each, said, before, paths.get(each.name));
  if (said.pairs) state.pairs = said.pairs;
  else if (said.is_whole) state.pairs = [];
  if ("detail" in said) state.detail = said.detail;
  if (said.events) state.events = [...state.events, ...said.events].slice(-EVENTS_KEPT);
  for (const namespace of state.namespaces.values()) noteState(namespace, said.at);
  for (const pair of state.pairs) notePair(pair, said.at, before);
  publish({ paths });
}

function forgetMissing(namespaces, changed) {
  const names = new Set(namespaces.map((each) => each.name));
  for (const name of state.namespaces.keys()) if (!names.has(name)) state.namespaces.delete(name);
  for (const said of namespaces) {
    const known = state.namespaces.get(said.name);
    const paths = new Set(said.entities.map((row) => row.path));
    for (const path of known?.rows.keys() ?? []) {
      if (!paths.has(path)) {
        known.rows.delete(path);
        changed.get(said.name).add(path);
      }
    }
  }
}

function takeNamespace(said, whole, before, changed) {
  const known = state.namespaces.get(said.name) ?? { rows: new Map(), history: [], states: [] };
  const { entities, removed, history, ...facts } = said;
  if (history) known.history = history;
  note(known.history, whole.at, before, facts);
  known.facts = facts;
  for (const path of removed) {
    known.rows.delete(path);
    changed.add(path);
  }
  for (const row of entities) {
    row.history = known.rows.get(row.path)?.history ?? [];
    note(row.history, whole.at, before, row);
    known.rows.set(row.path, row);
    changed.add(row.path);
  }
  state.namespaces.set(said.name, known);
}

/** Record the numbers of arrived and left messages, with the last time before the change. */
export function note(history, at, before, { arrived, left }) {
  const last = history.at(-1);
  if (last && last[1] === arrived && last[2] === left) return;
  if (last && before > last[0]) history.push([before, last[1], last[2]]);
  history.push([at, arrived, left]);
  if (history.length > HISTORY_KEPT) history.splice(0, history.length - HISTORY_KEPT);
}

/** Record the states of a namespace and their times. */
function noteState(namespace, at) {
  const last = namespace.states.at(-1);
  if (last?.state !== namespace.facts.state) namespace.states.push({ from: at, state: namespace.facts.state });
}

const seenPairs = new Map();

/** Record the history of a pair, because the broker reports only its current state. */
function notePair(pair, at, before) {
  const key = `${pair.primary}\n${pair.secondary}`;
  const seen = seenPairs.get(key) ?? { destinations: new Map(), backlog: [], history: [] };
  seenPairs.set(key, seen);
  pair.past = seen;
  for (const destination of pair.destinations) {
    const past = seen.destinations.get(destination.path) ?? { states: [], history: [] };
    seen.destinations.set(destination.path, past);
    const word = stateOfDestination(destination);
    if (past.states.at(-1)?.state !== word) past.states.push({ from: at, state: word });
    note(past.history, at, before, { arrived: destination.arrived, left: destination.arrived - destination.waiting });
    destination.history = past.history;
  }
  const arrived = pair.queues.reduce((sum, queue) => sum + queue.arrived, 0);
  const left = pair.queues.reduce((sum, queue) => sum + queue.left, 0);
  note(seen.history, at, before, { arrived, left });
}

/** The state of an entity of a primary as observed by the broker. */
export function stateOfDestination(destination) {
  if (destination.is_diverted) return "diverted";
  return destination.waiting ? "waiting" : "quiet";
}

function publish(change) {
  for (const changed of listeners) changed(change);
}

/** Call a function a few times a second at most, whatever changes. */
export function paced(action, pauseMs) {
  let timer = null;
  let isDue = false;
  return () => {
    if (timer !== null) {
      isDue = true;
      return;
    }
    action();
    timer = setTimeout(() => {
      timer = null;
      if (isDue) {
        isDue = false;
        action();
      }
    }, pauseMs);
  };
}
