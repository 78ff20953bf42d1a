/** The progress and the results of `sbclient demo` while it runs. */

import { h, keyed, write } from "./dom.js";
import { count, minutes, now } from "./format.js";
import { state } from "./store.js";

const PHASES = {
  "primary down": "bad",
  "primary back": "warn",
  draining: "warn",
  delivering: "warn",
  over: "good",
};

/** The line in the header of the page; call `update()` after each change. */
export function storyLine(place) {
  const phase = h("span", { class: "state" });
  const time = h("span", { class: "story-time" });
  const bar = h(
    "span",
    { class: "story-bar", "aria-hidden": "true" },
    h("span", { class: "story-outage" }),
    h("span", { class: "story-done" }),
  );
  const numbers = h("dl", { class: "story-numbers" });
  place.append(phase, time, bar, numbers);
  return {
    update() {
      const { story } = state;
      place.hidden = story === null;
      if (!story) return;
      const elapsed = story.is_over ? story.elapsed_s : Math.min(now() - story.started_at, story.elapsed_s + 5);
      phase.dataset.kind = PHASES[story.phase] ?? "good";
      write(phase, story.phase);
      write(time, `${minutes(elapsed)} of ${minutes(story.total_s)}, ${story.speed}× real time`);
      const share = (seconds) => `${Math.min(100, (100 * seconds) / story.total_s)}%`;
      const [outage, done] = bar.children;
      outage.style.left = share(story.outage.from_at - story.started_at);
      outage.style.width = share(story.outage.to_at - story.outage.from_at);
      done.style.width = share(elapsed);
      keyed(
        numbers,
        story.numbers,
        (each) => each.name,
        (each) => h("div", {}, h("dt", {}, each.name), h("dd", {})),
        (element, each) => {
          write(element.lastChild, count(each.value));
          element.dataset.kind = each.kind ?? "calm";
        },
      );
    },
  };
}
