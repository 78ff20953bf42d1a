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
  detailHistory: [],
  gaps: [],
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

/** Whether a queue, or that of a dead-letter queue, has several fragments. */
export function isPartitioned({ namespace, path }) {
  return rowOf(namespace, path.replace(/\/\$deadletterqueue$/i, ""))?.fragments > 1;
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
  if (!state.detail) state.detailHistory = [];
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
  state.at = said.at;
  state.link = "live";
  state.reason = null;
  if ("story" in said) state.story = said.story;
  takeTime(said.at);
  const paths = new Map(said.namespaces.map((each) => [each.name, new Set()]));
  if (said.is_whole) forgetOld(said.namespaces, paths);
  for (const each of said.namespaces) takeNamespace(each, paths.get(each.name));
  if (said.pairs) state.pairs = said.pairs;
  if (said.gaps) state.gaps = said.gaps;
  if ("detail" in said) state.detail = said.detail;
  state.detailHistory = joined(state.detailHistory, said.detail_history);
  if (said.events) state.events = [...state.events, ...said.events].slice(-EVENTS_KEPT);
  publish({ paths });
}

/** A history with new points at its end. */
function joined(history, points) {
  return points ? [...history, ...points].slice(-HISTORY_KEPT) : history;
}

/** Before a whole snapshot, which has all events and histories again. */
function forgetOld(namespaces, changed) {
  Object.assign(state, { events: [], detailHistory: [], pairs: [] });
  for (const known of state.namespaces.values()) known.history = [];
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

function takeNamespace(said, changed) {
  const known = state.namespaces.get(said.name) ?? { rows: new Map(), history: [] };
  const { entities, removed, history, ...facts } = said;
  known.history = joined(known.history, history);
  known.facts = facts;
  for (const path of removed) {
    known.rows.delete(path);
    changed.add(path);
  }
  for (const row of entities) {
    known.rows.set(row.path, row);
    changed.add(row.path);
  }
  state.namespaces.set(said.name, known);
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
