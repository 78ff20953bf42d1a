/** A picture of the fragments of an entity: fill level, locked messages, and faults. */

import { h, keyed, set, svg, write } from "./dom.js";
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
 * The picture; call `update(parts)` to redraw it.
 *
 * @param choose - called with the index of the chosen fragment, or null when it is chosen again.
 */
export function fragments(choose) {
  const list = h("ol", { class: "fragments" });
  let chosen = null;
  let latest = [];

  const pick = (index) => {
    chosen = chosen === index ? null : index;
    update(latest);
    choose(chosen);
  };
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[(at + step + buttons.length) % buttons.length].focus();
  });

  function update(parts) {
    latest = parts;
    if (chosen !== null && chosen >= parts.length) chosen = null;
    const most = niceAbove(Math.max(10, ...parts.map(storedIn)));
    set(list, "aria-label", `${parts.length} fragments`);
    keyed(
      list,
      parts,
      (part) => part.index,
      (part) => tank(part, pick),
      (item, part) => show(item, part, most, chosen),
    );
  }
  return {
    element: list,
    update,
    clear() {
      chosen = null;
      update(latest);
    },
  };
}

function tank(part, pick) {
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    svg("rect", { class: "tank", x: 1, y: 1, width: WIDTH - 2, height: HEIGHT - 2, rx: 4 }),
    svg("rect", { class: "level level-deferred", x: 4, width: WIDTH - 8, fill: "url(#deferred)" }),
    svg("rect", { class: "level level-scheduled", x: 4, width: WIDTH - 8 }),
    svg("rect", { class: "level level-locked", x: 4, width: WIDTH - 8, fill: "url(#locked)" }),
    svg("rect", { class: "level level-active", x: 4, width: WIDTH - 8 }),
    svg("path", { class: "sign" }),
  );
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", class: "fragment", onclick: () => pick(part.index) },
      h("span", { class: "hearable" }),
      h("span", { class: "fragment-count", "aria-hidden": "true" }),
      picture,
      h("span", { class: "fragment-index", "aria-hidden": "true" }, part.index),
      h("span", { class: "fragment-state", "aria-hidden": "true" }),
    ),
  );
}

function show(item, part, most, chosen) {
  const button = item.firstChild;
  const state = stateOf(part.state);
  const word = part.state === "up" ? "" : part.is_partial ? `${state.word} (partly)` : state.word;
  button.dataset.state = part.state;
  button.dataset.kind = state.kind;
  button.classList.toggle("partial", part.is_partial);
  set(button, "aria-pressed", String(chosen === part.index));
  const said =
    `Fragment ${part.index}: ${word || "up"}; ${count(part.active)} active, ${count(part.locked)} locked, ` +
    `${count(part.scheduled)} scheduled, ${count(part.deferred)} deferred, ${count(part.dead)} dead-lettered; ` +
    `${bytes(part.size_bytes)} of ${bytes(part.max_bytes)}`;
  write(button.firstChild, said);
  set(button, "title", said);
  write(button.querySelector(".fragment-count"), short(storedIn(part)));
  write(button.querySelector(".fragment-state"), word);
  set(button.querySelector(".sign"), "d", SIGNS[part.state] ?? "");
  const held = Math.min(part.locked, part.active);
  const levels = [part.active - held, held, part.scheduled, part.deferred].map((each) => height(each, most));
  const [active, locked, scheduled, deferred] = levels;
  place(button.querySelector(".level-active"), 0, active);
  place(button.querySelector(".level-locked"), active, locked);
  place(button.querySelector(".level-scheduled"), active + locked, scheduled);
  place(button.querySelector(".level-deferred"), active + locked + scheduled, deferred);
}

function storedIn(part) {
  return part.active + part.scheduled + part.deferred;
}

function height(value, most) {
  return value ? Math.max(1.5, (value / most) * (HEIGHT - 8)) : 0;
}

function place(bar, below, size) {
  set(bar, "y", (HEIGHT - 4 - below - size).toFixed(1));
  set(bar, "height", size.toFixed(1));
}
