/** The state of the emulator, updated by the stream, for all views. */

import { Refused, watch } from "./api.js";
import { setClock } from "./format.js";

const EVENTS_KEPT = 300;
const HISTORY_KEPT = 1500;
const SAMPLES_KEPT = 7;
const SAMPLE_AGE_S = 30;
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

let publish = () => {};

/** The last snapshots of the pairs: the time, and by name the numbers of messages that had arrived or left. */
let samples = [];
let stop = null;

/** Set the function that is called after each change. */
export function listen(changed) {
  publish = changed;
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
  publish();
}

function take(said) {
  const before = state.at;
  state.at = said.at;
  state.link = "live";
  state.reason = null;
  if ("story" in said) state.story = said.story;
  takeTime(said.at);
  if (said.is_whole) forgetOld(said.namespaces);
  for (const each of said.namespaces) takeNamespace(each, before);
  if (said.pairs) state.pairs = said.pairs;
  if (said.gaps) state.gaps = said.gaps;
  if ("detail" in said) state.detail = said.detail;
  takeSample();
  const row = state.detail && rowOf(state.detail.namespace, state.detail.path);
  if (said.detail_history) state.detailHistory = said.detail_history;
  else if (row) state.detailHistory = extended(state.detailHistory, row, before);
  if (said.events) state.events = [...state.events, ...said.events].slice(-EVENTS_KEPT);
  publish();
}

/** A history with the numbers of this snapshot, after the last time at which they had not changed. */
function extended(history, { arrived, left }, before) {
  const [at, ...last] = history.at(-1) ?? [before];
  if (last[0] === arrived && last[1] === left) return history;
  const still = before > at ? [[before, ...last]] : [];
  return [...history, ...still, [state.at, arrived, left]].slice(-HISTORY_KEPT);
}

function takeSample() {
  const numbers = new Map();
  for (const pair of state.pairs) {
    for (const name of ["arrived", "left"])
      numbers.set(keyOf(pair, name), pair.queues.reduce((sum, queue) => sum + queue[name], 0));
    for (const { path, arrived } of pair.destinations) numbers.set(keyOf(pair, "to", path), arrived);
  }
  const recent = samples.filter(({ at }) => state.at - at < SAMPLE_AGE_S * speed());
  samples = [...recent, { at: state.at, numbers }].slice(-SAMPLES_KEPT);
}

const keyOf = ({ primary, secondary }, ...names) => [primary, secondary, ...names].join("\n");

/** The rate at which messages `arrived` in or `left` a backlog, or came `to` a path, over the last snapshots. */
export function rateOf(pair, ...names) {
  const key = keyOf(pair, ...names);
  const [first, last] = [samples.find(({ numbers }) => numbers.has(key)), samples.at(-1)];
  if (!first || last.at <= first.at) return 0;
  return Math.max(0, (last.numbers.get(key) ?? 0) - first.numbers.get(key)) / (last.at - first.at);
}

/** Before a whole snapshot, which has all events, entities and histories again. */
function forgetOld(namespaces) {
  Object.assign(state, { events: [], detailHistory: [], pairs: [] });
  const names = new Set(namespaces.map((each) => each.name));
  for (const name of state.namespaces.keys()) if (!names.has(name)) state.namespaces.delete(name);
  for (const known of state.namespaces.values()) known.rows.clear();
}

function takeNamespace(said, before) {
  const known = state.namespaces.get(said.name) ?? { rows: new Map(), history: [] };
  const { entities, removed, history, ...facts } = said;
  known.history = history ?? extended(known.history, facts, before);
  known.facts = facts;
  for (const path of removed) known.rows.delete(path);
  for (const row of entities) known.rows.set(row.path, row);
  state.namespaces.set(said.name, known);
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
