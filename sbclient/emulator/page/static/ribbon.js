/** The history of states: a row for each entity, time from left to right. */

import { svg } from "./dom.js";
import { minutes, span } from "./format.js";
import { label, sharp, sized, stateOf } from "./pictures.js";

const ROW = 22;
const BAR = 13;
const AXIS = 20;
const MOST_ROWS = 12;

/** The picture; call `update({rows, from, to, zero})` to draw it. A row is `{name, spans: [{from, to, state}]}`. */
export function ribbonPicture(parent) {
  const picture = svg("svg", { class: "ribbon", role: "img" });
  let shown = null;
  const redraw = sized(parent, (width) => shown && draw(picture, shown, width));
  return {
    element: picture,
    update(latest) {
      shown = latest;
      redraw();
    },
  };
}

function draw(picture, { rows, from, to, zero, until = to }, width) {
  const left = width < 560 ? 84 : 150;
  const some = rows.slice(0, MOST_ROWS);
  const height = some.length * ROW + AXIS;
  const x = (at) =>
    sharp(left + ((Math.min(Math.max(at, from), until) - from) / Math.max(until - from, 1)) * (width - left - 2));
  const marks = some.flatMap((row, at) => [
    label(0, at * ROW + BAR - 2, row.name, "ribbon-name", left - 8),
    svg("rect", {
      class: "ribbon-ground",
      x: left,
      y: at * ROW,
      width: Math.max(width - left - 2, 0),
      height: BAR,
    }),
    ...row.spans
      .filter((each) => each.to > from)
      .map((each) => {
        const { kind, word } = stateOf(each.state);
        const x1 = x(each.from);
        return svg(
          "rect",
          { class: `span span-${kind}`, x: x1, y: at * ROW, width: Math.max(x(each.to) - x1, 1.5), height: BAR },
          svg("title", {}, `${row.name}: ${word} for ${span(each.to - each.from)}`),
        );
      }),
  ]);
  const middle = zero === null ? `${span(until - from)} ago` : minutes(from - zero);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", some.map(sentence).join("; "));
  picture.replaceChildren(
    ...marks,
    svg("line", { class: "cursor", x1: x(to), x2: x(to), y1: 0, y2: height - AXIS }),
    label(left, height - 4, middle, "tick"),
    label(width - 2, height - 4, zero === null ? "now" : minutes(until - zero), "tick", Infinity, "end"),
  );
}

function sentence(row) {
  const last = row.spans.at(-1);
  return last
    ? `${row.name} is ${stateOf(last.state).word}, for ${span(last.to - last.from)}`
    : `${row.name}: no data`;
}

/** Periods from the times at which states began: each lasts until the next one, the last until `to`. */
export function spansOf(changes, to) {
  return changes.map((each, at) => ({ from: each.from, to: changes[at + 1]?.from ?? to, state: each.state }));
}
