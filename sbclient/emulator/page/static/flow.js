/** A picture of a pair: messages to the primary, diverted to the backlog, and drained from it. */

import { html } from "./dom.js";
import { count, rate } from "./format.js";
import { label } from "./pictures.js";

const HEIGHT = 196;
const BOX_HEIGHT = 62;
const UPPER = 4;
const LOWER = HEIGHT - BOX_HEIGHT - 4;

/** The picture of a flow: names, states, and messages per second on each path. */
export function flowPicture(flow, width) {
  const isNarrow = width < 560;
  const left = isNarrow ? 66 : 132;
  const boxWidth = Math.max(20, isNarrow ? Math.min(190, width - left - 84) : Math.min(300, width - left - 210));
  const boxX = width - boxWidth - 1;
  const [upperMiddle, lowerMiddle] = [UPPER + BOX_HEIGHT / 2, LOWER + BOX_HEIGHT / 2];
  const { state, waiting } = flow;
  const standing = flow.isHere ? `primary · ${state.word}` : "primary · not served here";
  const backlog = `backlog · ${count(waiting)} waiting`;
  const namespace = (y, kind, name, note, tone) => html`
    ${box(boxX, y, boxWidth, BOX_HEIGHT, `box-${kind}`)}
    ${label(boxX + 12, y + 25, name, "box-name", boxWidth - 24)}
    ${label(boxX + 12, y + 46, note, `box-note tone-${tone}`, boxWidth - 20)}`;
  const across = (y, perSecond, kind, name) => way(left, y, boxX, y, perSecond, kind, isNarrow ? "" : name);
  const middle = boxX + boxWidth / 2;
  return html`
    <svg
      class="flow" role="img" width=${width} height=${HEIGHT} viewBox="0 0 ${width} ${HEIGHT}" aria-label=${said(flow)}
    >
      ${box(1, UPPER, left - 2, HEIGHT - 8, "box-plain")}
      ${label(left / 2, HEIGHT / 2 + 4, "senders", "box-name", left, "middle")}
      ${namespace(UPPER, state.kind, flow.primary, standing, state.kind)}
      ${namespace(LOWER, waiting ? "warn" : "plain", flow.secondary, backlog, waiting ? "warn" : "plain")}
      ${across(upperMiddle, flow.direct, state.kind === "bad" ? "cut" : "direct", "direct")}
      ${across(lowerMiddle, flow.diverted, "diverted", "diverted")}
      ${way(middle, LOWER, middle, UPPER + BOX_HEIGHT, flow.home, "home", "drained")}
    </svg>`;
}

function box(x, y, width, height, className) {
  return html`<rect x=${x} y=${y} width=${width} height=${height} rx="6" class="box ${className}" />`;
}

/** An arrow with its rate; it moves while messages flow. */
function way(x1, y1, x2, y2, perSecond, kind, name) {
  const isUp = x1 === x2;
  const isMoving = perSecond > 0.01;
  const weight = isMoving ? Math.min(5, 1.5 + Math.log10(1 + perSecond)) : 1.25;
  const [endX, endY] = isUp ? [x2, y2 + 7] : [x2 - 7, y2];
  const head = isUp ? `M${x2} ${y2 + 1}l-5 9h10z` : `M${x2 - 1} ${y2}l-9-5v10z`;
  const text = `${perSecond === null ? "–" : rate(perSecond)} /s${name ? ` ${name}` : ""}`;
  const look = `way-${kind}${isMoving ? " moving" : ""}`;
  return html`
    <path class="way ${look}" d="M${x1} ${y1}L${endX} ${endY}" stroke-width=${weight} />
    <path class="head ${look}" d=${head} />
    ${kind === "cut" && html`<path class="cut-sign" d="M${x2 - 31} ${y1 - 7}l14 14m0-14l-14 14" />`}
    ${
      isUp
        ? label(x1 - 12, (y1 + y2) / 2 + 4, text, "way-label", 170, "end")
        : label((x1 + x2) / 2, y1 - 12, text, "way-label", x2 - x1, "middle")
    }`;
}

function said(flow) {
  const standing = flow.isHere ? flow.state.word : "not served here";
  const direct = flow.direct === null ? "" : `${rate(flow.direct)} messages a second go to it, `;
  return (
    `${flow.primary}, ${standing}: ${direct}${rate(flow.diverted)} are diverted to ${flow.secondary}, ` +
    `where ${count(flow.waiting)} wait, and ${rate(flow.home)} are drained`
  );
}
