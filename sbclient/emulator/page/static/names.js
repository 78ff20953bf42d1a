/** Short names of entities and namespaces, and the addresses of their views. */

import { visible } from "./dom.js";
import { state } from "./store.js";

const BACKLOG = /^(.+)\/x-servicebus-transfer(-sessions)?\/(\d+)$/i;
const PORT = /-(\d+)$/;

/** The path of an entity; for a backlog queue, its number and its primary. */
export function nameOf(path) {
  const backlog = BACKLOG.exec(path);
  if (!backlog) return visible(path);
  const [, primary, isForSessions, number] = backlog;
  return `${isForSessions ? "session backlog" : "backlog"} ${number} of ${visible(namespaceOf(primary))}`;
}

/** Backlog queues of a namespace on this machine are named after its host and port. */
function namespaceOf(primary) {
  const port = Number(PORT.exec(primary)?.[1]);
  return Object.keys(state.about.ports).find((name) => state.about.ports[name] === port) ?? primary;
}

/** The address of the view of an entity, of one of its tabs, or of a message there. */
export function addressOf(namespace, path, tab = null, number = null) {
  return ["#", namespace, path, tab, number]
    .filter((part) => part !== null)
    .map((part, at) => (at ? encodeURIComponent(part) : part))
    .join("/");
}

/** Whether a text is a sequence number: only digits. */
export function isSequenceNumber(text) {
  return /^[0-9]{1,19}$/.test(text);
}
