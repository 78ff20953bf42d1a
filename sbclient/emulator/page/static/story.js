/** The progress and the results of `sbclient demo` while it runs. */

import { html } from "./dom.js";
import { count, minutes, now } from "./format.js";

const PHASES = {
  "primary down": "bad",
  "primary back": "warn",
  draining: "warn",
  delivering: "warn",
  over: "good",
};

/** The line in the header of the page. */
export function Story({ story }) {
  const elapsed = story.is_over ? story.elapsed_s : Math.min(now() - story.started_at, story.elapsed_s + 5);
  const share = (seconds) => `${Math.min(100, (100 * seconds) / story.total_s)}%`;
  const { from_at: from, to_at: to } = story.outage;
  return html`
    <span class="state" data-kind=${PHASES[story.phase] ?? "good"}>${story.phase}</span>
    <span class="story-time">${minutes(elapsed)} of ${minutes(story.total_s)}, ${story.speed}× real time</span>
    <span class="story-bar" aria-hidden="true">
      <span class="story-outage" style=${{ left: share(from - story.started_at), width: share(to - from) }}></span>
      <span class="story-done" style=${{ width: share(elapsed) }}></span>
    </span>
    <dl class="story-numbers">
      ${story.numbers.map(
        ({ name, value, kind }) => html`
          <div key=${name} data-kind=${kind ?? "calm"}><dt>${name}</dt><dd>${count(value)}</dd></div>`,
      )}
    </dl>`;
}
