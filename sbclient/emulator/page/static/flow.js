/** A picture of a pair: messages to the primary, diverted to the backlog, and drained from it. */

import { svg } from "./dom.js";
import { count, rate } from "./format.js";
import { label, sized } from "./pictures.js";

const HEIGHT = 196;
const BOX_HEIGHT = 62;
const LOWER = HEIGHT - BOX_HEIGHT - 4;

/** The picture; call `update(flow)` to draw names, states, and messages per second on each path. */
export function flowPicture(parent) {
  const picture = svg("svg", { class: "flow", role: "img", height: HEIGHT });
  let flow = null;
  const redraw = sized(parent, (width) => flow && draw(picture, flow, width));
  return {
    element: picture,
    update(latest) {
      flow = latest;
      redraw();
    },
  };
}

function draw(picture, flow, width) {
  const isNarrow = width < 560;
  const left = isNarrow ? 66 : 132;
  const boxWidth = isNarrow ? Math.min(190, width - left - 84) : Math.min(300, width - left - 210);
  const boxX = width - boxWidth - 1;
  const { state } = flow;
  const upper = 4;
  const [upperMiddle, lowerMiddle] = [upper + BOX_HEIGHT / 2, LOWER + BOX_HEIGHT / 2];
  const isCut = state.kind === "bad";
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.setAttribute("width", width);
  picture.setAttribute("aria-label", said(flow, state));
  picture.replaceChildren(
    box(1, upper, left - 2, HEIGHT - 8, "box-plain"),
    label(left / 2, HEIGHT / 2 + 4, "senders", "box-name", left, "middle"),
    box(boxX, upper, boxWidth, BOX_HEIGHT, `box-${state.kind}`),
    label(boxX + 12, upper + 25, flow.primary, "box-name", boxWidth - 24),
    label(
      boxX + 12,
      upper + 46,
      flow.isHere ? `primary · ${state.word}` : "primary · not served here",
      `box-note tone-${state.kind}`,
      boxWidth - 20,
    ),
    box(boxX, LOWER, boxWidth, BOX_HEIGHT, flow.waiting ? "box-warn" : "box-plain"),
    label(boxX + 12, LOWER + 25, flow.secondary, "box-name", boxWidth - 24),
    label(
      boxX + 12,
      LOWER + 46,
      `backlog · ${count(flow.waiting)} waiting`,
      `box-note ${flow.waiting ? "tone-warn" : ""}`,
      boxWidth - 20,
    ),
    ...way(left, upperMiddle, boxX, upperMiddle, flow.direct, isCut ? "cut" : "direct", isNarrow ? "" : "direct"),
    ...way(left, lowerMiddle, boxX, lowerMiddle, flow.diverted, "diverted", isNarrow ? "" : "diverted"),
    ...way(
      boxX + boxWidth / 2,
      LOWER,
      boxX + boxWidth / 2,
      upper + BOX_HEIGHT,
      flow.home,
      "home",
      "drained",
    ),
  );
}

function box(x, y, width, height, className) {
  return svg("rect", { x, y, width, height, rx: 6, class: `box ${className}` });
}

/** An arrow with its rate; it moves while messages flow. */
function way(x1, y1, x2, y2, perSecond, kind, name) {
  const isUp = x1 === x2;
  const isMoving = perSecond > 0.01;
  const weight = isMoving ? Math.min(5, 1.5 + Math.log10(1 + perSecond)) : 1.25;
  const [endX, endY] = isUp ? [x2, y2 + 7] : [x2 - 7, y2];
  const head = isUp ? `M${x2} ${y2 + 1}l-5 9h10z` : `M${x2 - 1} ${y2}l-9-5v10z`;
  const text = `${perSecond === null ? "–" : rate(perSecond)} /s${name ? ` ${name}` : ""}`;
  const middle = (x1 + x2) / 2;
  return [
    svg("path", {
      class: `way way-${kind}${isMoving ? " moving" : ""}`,
      d: `M${x1} ${y1}L${endX} ${endY}`,
      "stroke-width": weight,
    }),
    svg("path", { class: `head way-${kind}${isMoving ? " moving" : ""}`, d: head }),
    kind === "cut" && svg("path", { class: "cut-sign", d: `M${x2 - 31} ${y1 - 7}l14 14m0-14l-14 14` }),
    isUp
      ? label(x1 - 12, (y1 + y2) / 2 + 4, text, "way-label", 170, "end")
      : label(middle, y1 - 12, text, "way-label", x2 - x1, "middle"),
  ].filter(Boolean);
}

function said(flow, state) {
  const standing = flow.isHere ? state.word : "not served here";
  const direct = flow.direct === null ? "" : `${rate(flow.direct)} messages a second go to it, `;
  return (
    `${flow.primary}, ${standing}: ${direct}${rate(flow.diverted)} are diverted to ${flow.secondary}, ` +
    `where ${count(flow.waiting)} wait, and ${rate(flow.home)} are drained`
  );
}
