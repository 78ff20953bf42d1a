/** Throughput per second: arriving messages above the line, leaving messages below it. */

import { html } from "./dom.js";
import { minutes, now, rate, short, span, timeOfDay } from "./format.js";
import { label, niceAbove, sharp, Sized } from "./pictures.js";
import { speed, state } from "./store.js";

const HEIGHT = 132;
const TOP = 16;
const BOTTOM = 18;
const BINS = 120;
const WINDOW_S = 120;

/** A chart of a `history`; `what` names it for screen readers: "contoso". */
export class Chart extends Sized {
  render({ what, history, hidden }, { width, pointerX }) {
    const [inNow, outNow] = recent(history).map(rate);
    const drawn = width > 0 ? plotted(history, width) : null;
    const point = ({ offsetX }) => this.setState({ pointerX: offsetX });
    const name =
      `Throughput of ${what}: ${inNow} messages in and ${outNow} out per second, at most ${rate(drawn?.most ?? 0)}`;
    return html`
      <figure ref=${this.measured} class="throughput ${drawn?.most === 0 ? "idle" : ""}" hidden=${hidden}>
        <figcaption>
          <span class="key key-in">in <output class="figure tone-in">${inNow}</output> /s</span>
          <span class="key key-out">out <output class="figure tone-out">${outNow}</output> /s</span>
          <span class="reading">${drawn && reading(drawn, pointerX, width)}</span>
        </figcaption>
        <svg
          class="chart" role="img" height=${HEIGHT} width=${width} viewBox="0 0 ${width} ${HEIGHT}" aria-label=${name}
          onpointermove=${point} onpointerleave=${() => this.setState({ pointerX: null })}
        >
          ${drawn && picture(drawn, pointerX, width)}
        </svg>
      </figure>`;
  }
}

/** The peak, or the rates under the pointer. */
function reading({ bins, most }, pointerX, width) {
  if (typeof pointerX !== "number") return `peak ${rate(most)} /s`;
  const bin = bins[Math.max(0, Math.min(bins.length - 1, Math.floor((pointerX / width) * bins.length)))];
  return `${clockTime(bin.at)}  ${bin.isKnown ? `in ${rate(bin.came)}  out ${rate(bin.went)}` : "no data"}`;
}

/** Messages per second that arrived and left in the last seconds. */
export function recent(history, spanS = 3 * speed()) {
  const at = now();
  const [a, b] = [valueAt(history, at - spanS), valueAt(history, at)];
  return [0, 1].map((each) => Math.max(0, b[each] - a[each]) / spanS); // less if the entity was created again
}

function plotted(history, width) {
  const [from, to] = stretch();
  const bins = binned(history, from, to);
  return { from, to, bins, most: Math.max(...bins.map((bin) => Math.max(bin.came, bin.went))) };
}

function picture({ from, to, bins, most }, pointerX, width) {
  const scale = niceAbove(Math.max(most, 1));
  const middle = TOP + (HEIGHT - TOP - BOTTOM) / 2;
  const reach = middle - TOP;
  const y = (value, sign) => sharp(middle - (sign * value * reach) / scale);
  const x = (at) => sharp((at * width) / bins.length);
  const area = (name, sign) => {
    const points = bins.map((bin, at) => `H${x(at)}V${y(bin[name], sign)}`);
    return `M0 ${middle}${points.join("")}H${width}V${middle}Z`;
  };
  const { story } = state;
  const first = story ? minutes(from - story.started_at) : `${span(to - from)} ago`;
  const last = story ? minutes(to - story.started_at) : "now";
  const cursor = html`<line x1=${pointerX} x2=${pointerX} y1=${TOP} y2=${HEIGHT - BOTTOM} class="cursor" />`;
  return html`
    <path class="grid" d="M0 ${TOP}H${width}M0 ${HEIGHT - BOTTOM}H${width}" />
    <path class="area area-in" d=${area("came", 1)} />
    <path class="area area-out" d=${area("went", -1)} />
    ${unknownIn(bins).map(([from, to]) => unknown(x(from), x(to)))}
    <path class="axis" d="M0 ${middle}H${width}" />
    ${typeof pointerX === "number" && cursor}
    ${label(0, TOP - 4, `${short(scale)} /s`, "tick")}
    ${label(0, HEIGHT - 4, first, "tick")}
    ${label(width, HEIGHT - 4, last, "tick", Infinity, "end")}`;
}

/** Where nothing is known, because no page was open or the connection was lost. */
function unknown(x1, x2) {
  const width = x2 - x1;
  return html`
    <rect class="no-data" x=${x1} y=${TOP} width=${width} height=${HEIGHT - BOTTOM - TOP} />
    ${width >= 70 && label(x1 + width / 2, TOP + 20, "no data", "tick", width, "middle")}`;
}

/** The first and the last place of each row of bins without data. */
function unknownIn(bins) {
  const found = [];
  bins.forEach((bin, at) => {
    if (bin.isKnown) return;
    if (found.at(-1)?.[1] === at) found.at(-1)[1] = at + 1;
    else found.push([at, at + 1]);
  });
  return found;
}

/** A time on the axis; in a demonstration, the minutes since its start. */
function clockTime(at) {
  return state.story ? minutes(at - state.story.started_at) : timeOfDay(at);
}

/** The period of the chart: the last minutes, or all of a demonstration. */
function stretch() {
  const { story } = state;
  if (!story) return [now() - WINDOW_S, now()];
  const end = story.started_at + (story.is_over ? story.elapsed_s : story.total_s);
  return [story.started_at, story.is_over ? end : Math.max(now(), end)];
}

function binned(history, from, to) {
  const sizeS = (to - from) / BINS;
  const first = Math.floor(from / sizeS) * sizeS;
  let before = valueAt(history, first);
  const gaps = state.link === "lost" ? [...state.gaps, [state.at, Infinity]] : state.gaps;
  return Array.from({ length: BINS }, (_, place) => {
    const [at, end] = [first + place * sizeS, first + (place + 1) * sizeS];
    const after = valueAt(history, end);
    const isKnown = !gaps.some(([gapFrom, gapTo]) => (gapFrom ? gapFrom < end && at < gapTo : end <= gapTo));
    const [came, went] = isKnown ? after.map((value, each) => (value - before[each]) / sizeS) : [0, 0];
    before = after;
    return { at, came, went, isKnown };
  });
}

/** The numbers of arrived and left messages at a time, interpolated between known points. */
function valueAt(history, at) {
  if (!history.length) return [0, 0];
  let low = 0;
  let high = history.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (history[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  if (low === 0) return [history[0][1], history[0][2]];
  const a = history[low - 1];
  const b = history[low];
  if (!b) return [a[1], a[2]];
  const share = (at - a[0]) / (b[0] - a[0]);
  return [a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share];
}
