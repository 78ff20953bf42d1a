/** A picture of the fragments of an entity: fill level, locked messages, and faults. */

import { html } from "./dom.js";
import { bytes, count, short } from "./format.js";
import { niceAbove, stateOf } from "./pictures.js";

const WIDTH = 48;
const HEIGHT = 60;
const SIGNS = {
  down: "M14 20 34 40M34 20 14 40",
  hanging: "M19 20V40M29 20V40",
  busy: "M24 18V34M24 39V42",
  failing: "M27 17 18 32H30L21 44",
  slow: "M12 30q6-9 12 0t12 0",
  mute: "M14 30l7 7 13-15M12 42 36 16",
  full: "M12 17H36M12 21H36",
};

/**
 * The picture.
 *
 * @param choose - called with the index of the chosen fragment, or null when it is chosen again.
 */
export function Fragments({ parts, chosen, choose }) {
  const most = niceAbove(Math.max(10, ...parts.map(storedIn)));
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const buttons = [...event.currentTarget.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[(at + step + buttons.length) % buttons.length].focus();
  };
  return html`
    <ol class="fragments" aria-label="${parts.length} fragments" onkeydown=${move}>
      ${parts.map((part) => html`<li key=${part.index}>${fragment(part, most, chosen, choose)}</li>`)}
    </ol>`;
}

function fragment(part, most, chosen, choose) {
  const { index } = part;
  const { word: name, kind } = stateOf(part.state);
  const word = part.state === "up" ? "" : part.is_partial ? `${name} (partly)` : name;
  const said =
    `Fragment ${index}: ${word || "up"}; ${count(part.active)} active, ${count(part.locked)} locked, ` +
    `${count(part.scheduled)} scheduled, ${count(part.deferred)} deferred, ${count(part.dead)} dead-lettered; ` +
    `${bytes(part.size_bytes)} of ${bytes(part.max_bytes)}`;
  return html`
    <button
      type="button" class="fragment ${part.is_partial ? "partial" : ""}" title=${said} data-state=${part.state}
      data-kind=${kind} aria-pressed=${chosen === index} onclick=${() => choose(chosen === index ? null : index)}
    >
      <span class="hearable">${said}</span>
      <span class="fragment-count" aria-hidden="true">${short(storedIn(part))}</span>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true">
        <rect class="tank" x="1" y="1" width=${WIDTH - 2} height=${HEIGHT - 2} rx="4" />
        ${levels(part, most)}
        <path class="sign" d=${SIGNS[part.state] ?? ""} />
      </svg>
      <span class="fragment-index" aria-hidden="true">${index}</span>
      <span class="fragment-state" aria-hidden="true">${word}</span>
    </button>`;
}

/** The bars of the messages by state, one above the other. */
function levels(part, most) {
  const held = Math.min(part.locked, part.active);
  let below = 0;
  return [
    ["active", part.active - held],
    ["locked", held, "url(#locked)"],
    ["scheduled", part.scheduled],
    ["deferred", part.deferred, "url(#deferred)"],
  ].map(([name, value, fill]) => {
    const size = value ? Math.max(1.5, (value / most) * (HEIGHT - 8)) : 0;
    below += size;
    const y = (HEIGHT - 4 - below).toFixed(1);
    return html`
      <rect class="level level-${name}" x="4" y=${y} width=${WIDTH - 8} height=${size.toFixed(1)} fill=${fill} />`;
  });
}

function storedIn(part) {
  return part.active + part.scheduled + part.deferred;
}
