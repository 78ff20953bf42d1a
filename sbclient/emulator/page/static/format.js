/** Formats numbers, sizes and times. Timestamps are seconds since 1970 by the clock of the emulator. */

import { html } from "./dom.js";
import { Component } from "./preact.js";

const whole = new Intl.NumberFormat("en");
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const clock = { at: Date.now() / 1000, read: performance.now(), speed: 1 };

/** Set the clock to the time of the emulator and its speed. */
export function setClock(at, speed) {
  Object.assign(clock, { at, read: performance.now(), speed });
}

/** The time of the emulator. */
export function now() {
  return clock.at + ((performance.now() - clock.read) / 1000) * clock.speed;
}

export function count(value) {
  return whole.format(value);
}

/** For narrow places: 12,300 is 12.3K. */
export function short(value) {
  return value < 10_000 ? whole.format(value) : compact.format(value);
}

export function rate(perSecond) {
  if (perSecond > 0 && perSecond < 0.05) return "<0.1";
  return perSecond < 100 ? tenth.format(perSecond) : short(Math.round(perSecond));
}

export function bytes(value) {
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 100 ? tenth.format(size) : whole.format(Math.round(size))} ${SIZES[unit]}`;
}

/** A duration in its two largest units. */
export function span(seconds) {
  const rest = Math.max(0, seconds);
  if (rest < 1) return `${Math.round(rest * 1000)} ms`;
  if (rest < 60) return `${Math.floor(rest)} s`;
  if (rest < 3600) return two(rest, 60, "min", 1, "s");
  if (rest < 86_400) return two(rest, 3600, "h", 60, "min");
  return two(rest, 86_400, "d", 3600, "h");
}

function two(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  const said = `${count(Math.floor(seconds / large))} ${largeName}`;
  return rest ? `${said} ${pad(rest)} ${smallName}` : said;
}

/** Minutes and seconds of a demonstration: 02:30. */
export function minutes(seconds) {
  return `${pad(seconds / 60)}:${pad(seconds % 60)}`;
}

function pad(value) {
  return String(Math.floor(value)).padStart(2, "0");
}

export function timestamp(at) {
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return "never";
  const thousandths = String(date.getMilliseconds()).padStart(3, "0");
  return `${date.toLocaleDateString("sv")} ${date.toLocaleTimeString("sv")}.${thousandths}`;
}

export function timeOfDay(at) {
  return new Date(at * 1000).toLocaleTimeString("sv");
}

/** One or many: `plural(2, "message")` is "2 messages". */
export function plural(value, word, words = `${word}s`) {
  return `${count(value)} ${value === 1 ? word : words}`;
}

const ticking = new Set();

/** A timestamp relative to now, kept up to date; its title is the timestamp. */
export class Ago extends Component {
  componentDidMount() {
    ticking.add(this);
  }

  componentWillUnmount() {
    ticking.delete(this);
  }

  render({ at, class: className, hidden }) {
    if (at === null || at === undefined) return html`<time class=${className} hidden=${hidden}>–</time>`;
    if (at !== this.at) Object.assign(this, { at, title: timestamp(at) });
    return html`<time class=${className} data-at=${at} title=${this.title} hidden=${hidden}>${relative(at)}</time>`;
  }
}

function relative(at) {
  const since = now() - at;
  if (since < -0.5) return `in ${span(-since)}`;
  return since < 1 ? "now" : `${span(since)} ago`;
}

/** Update all relative times on the page. */
export function refreshTimes() {
  for (const each of ticking) each.setState({});
}
