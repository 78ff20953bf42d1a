/** Shared by all pictures: width, scale of an axis, and the name and severity of each state. */

import { html } from "./dom.js";
import { Component } from "./preact.js";

/** The name and severity of each state. */
export const STATES = {
  up: { word: "up", kind: "good" },
  slow: { word: "slow", kind: "warn" },
  mute: { word: "loses answers", kind: "warn" },
  busy: { word: "busy", kind: "warn" },
  full: { word: "full", kind: "bad" },
  failing: { word: "failing", kind: "bad" },
  hanging: { word: "hanging", kind: "bad" },
  down: { word: "down", kind: "bad" },
  healthy: { word: "healthy", kind: "good" },
  suspect: { word: "suspect", kind: "warn" },
  failed_over: { word: "failed over", kind: "bad" },
  diverted: { word: "diverted now", kind: "bad" },
  waiting: { word: "waiting", kind: "warn" },
  quiet: { word: "quiet", kind: "calm" },
};

export function stateOf(name) {
  return STATES[name] ?? { word: name, kind: "calm" };
}

/** The state of a namespace, which is not up while faults affect some of its entities. */
export function stateOfNamespace({ facts, rows }) {
  const { word, kind } = stateOf(facts.state);
  const affected = [...rows.values()].filter((row) => row.state !== "up").length;
  if (facts.state === "up" && affected) {
    return { word: affected === 1 ? "problem in 1 entity" : `problems in ${affected} entities`, kind: "warn" };
  }
  return { word: facts.is_partial ? `${word}, partly` : word, kind };
}

/** A component that knows the width of its element, which has `ref=${this.measured}`; 0 while that is hidden. */
export class Sized extends Component {
  state = { width: 0 };
  measured = (element) => {
    this.observer?.disconnect();
    this.observer = new ResizeObserver(([{ contentRect }]) => this.setState({ width: Math.round(contentRect.width) }));
    if (element) this.observer.observe(element);
  };
}

/** A place for the picture that `draw(width)` returns. */
export class Picture extends Sized {
  render({ draw, children }, { width }) {
    return html`<div class="picture" ref=${this.measured}>${width > 0 && draw(width)}${children}</div>`;
  }
}

/** A coordinate at the edge of a pixel of the screen, so that edges are sharp. */
export function sharp(value) {
  const dots = devicePixelRatio || 1;
  return Math.round(value * dots) / dots;
}

/** The smallest round number that is not below a value. */
export function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** Text in a picture, cut to a number of pixels. */
export function label(x, y, text, className, widthPx = Infinity, anchor = "start") {
  const most = Math.max(3, Math.floor(widthPx / 6.6));
  const said = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return html`<text x=${x} y=${y} class=${className} text-anchor=${anchor}>${said}</text>`;
}
