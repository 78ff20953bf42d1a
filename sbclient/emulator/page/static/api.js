/** Requests to the control API, and the stream of changes. */

import { headers, renew } from "./access.js";

const SILENCE_MS = 6000;

/** The emulator rejected a request; the message is its error text. */
export class Refused extends Error {
  constructor(status, text, type) {
    super(text);
    this.status = status;
    this.type = type;
  }
}

/**
 * Send one request; resolves to its response.
 *
 * @param what - the path below `/$control/`.
 * @param query - names and values; null values are left out.
 */
export async function ask(method, what, query = {}, body = undefined) {
  const response = await request(what, query, {
    method,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return response.json();
}

async function request(what, query, options) {
  for (let tries = 0; ; tries += 1) {
    const token = await headers();
    let response;
    try {
      response = await fetch(address(what, query), { ...options, headers: token, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The emulator does not answer: it has ended, or a fault affects this port.");
    }
    if (response.ok) return response;
    const refused = await refusalIn(response);
    if (response.status !== 401 || tries === 8) throw refused;
    await renew(refused.message);
  }
}

function address(what, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return `/$control/${what}?${new URLSearchParams(given)}`;
}

async function refusalIn(response) {
  const text = await response.text();
  try {
    const said = JSON.parse(text);
    return new Refused(response.status, said.error, said.type);
  } catch {
    return new Refused(response.status, text.slice(0, 500) || `The emulator answered with status ${response.status}.`);
  }
}

/**
 * Watch until the signal is aborted; rejects when the stream ends or is silent.
 *
 * @param onEvent - called with the name and the data of each event.
 */
export async function watch(query, signal, onEvent) {
  const silence = new AbortController();
  const response = await request("watch", query, { signal: AbortSignal.any([signal, silence.signal]) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const timer = setTimeout(() => silence.abort(), SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) throw new Refused(0, "The emulator has ended the stream.");
    waiting += value;
    for (let end = waiting.indexOf("\n\n"); end >= 0; end = waiting.indexOf("\n\n")) {
      const event = waiting.slice(0, end).split("\n");
      waiting = waiting.slice(end + 2);
      const name = event.find((line) => line.startsWith("event: "));
      const data = event.find((line) => line.startsWith("data: "));
      if (name && data) onEvent(name.slice(7), JSON.parse(data.slice(6)));
    }
  }
}
