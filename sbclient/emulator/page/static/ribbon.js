/** The history of states: a row for each entity, time from left to right. */

import { html } from "./dom.js";
import { minutes, span } from "./format.js";
import { label, sharp, stateOf } from "./pictures.js";

const ROW = 22;
const BAR = 13;
const AXIS = 20;
const MOST_ROWS = 12;

/** The picture of `{rows, from, to, zero, until}`. A row is `{name, spans: [{from, to, state}]}`. */
export function ribbonPicture({ rows, from, to, zero, until }, width) {
  const left = width < 560 ? 84 : 150;
  const some = rows.slice(0, MOST_ROWS);
  const height = some.length * ROW + AXIS;
  const share = (at) => (Math.min(Math.max(at, from), until) - from) / Math.max(until - from, 1);
  const x = (at) => sharp(left + share(at) * (width - left - 2));
  const bar = (row, y, { from: began, to: ended, state }) => {
    const { kind, word } = stateOf(state);
    return html`
      <rect class="span span-${kind}" x=${x(began)} y=${y} width=${Math.max(x(ended) - x(began), 1.5)} height=${BAR}>
        <title>${row.name}: ${word} for ${span(ended - began)}</title>
      </rect>`;
  };
  return html`
    <svg
      class="ribbon" role="img" width=${width} height=${height} viewBox="0 0 ${width} ${height}"
      aria-label=${some.map(sentence).join("; ")}
    >
      ${some.map(
        (row, at) => html`
          ${label(0, at * ROW + BAR - 2, row.name, "ribbon-name", left - 8)}
          <rect class="ribbon-ground" x=${left} y=${at * ROW} width=${Math.max(width - left - 2, 0)} height=${BAR} />
          ${row.spans.filter((each) => each.to > from).map((each) => bar(row, at * ROW, each))}`,
      )}
      <line class="cursor" x1=${x(to)} x2=${x(to)} y1="0" y2=${height - AXIS} />
      ${label(left, height - 4, zero === null ? `${span(until - from)} ago` : minutes(from - zero), "tick")}
      ${label(width - 2, height - 4, zero === null ? "now" : minutes(until - zero), "tick", Infinity, "end")}
    </svg>`;
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
