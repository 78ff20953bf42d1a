/** Switches that inject and heal faults of a namespace, an entity, or one fragment. */

import { ask } from "./api.js";
import { attempt, confirmed } from "./dialogs.js";
import { h, keyed, set, visible, write } from "./dom.js";
import { plural, span } from "./format.js";
import { state } from "./store.js";

const EVERYWHERE = ["namespace", "entity", "fragment"];

/** The faults: where each can be injected, and its effect on clients. */
const SWITCHES = [
  { kind: "down", name: "Down", says: "rejects every request", at: EVERYWHERE },
  { kind: "hang", name: "Hangs", says: "never answers, and does nothing", at: EVERYWHERE },
  { kind: "busy", name: "Busy", says: "rejects requests as server-busy", at: EVERYWHERE },
  { kind: "slow", name: "Slow", says: "answers late, by seconds:", at: EVERYWHERE, latency: 2 },
  { kind: "lose_acknowledgement", name: "Loses answers", says: "acts without an answer", at: EVERYWHERE },
  { kind: "quota", name: "Full", says: "rejects sends: quota exceeded", at: EVERYWHERE },
  {
    kind: "drop_acknowledgement",
    name: "Drops acknowledgements",
    says: "on the wire, where AMQP clients notice",
    at: ["namespace", "entity"],
  },
  { kind: "detach", name: "Detaches links", says: "ends AMQP links, new ones too", at: ["namespace", "entity"] },
  {
    kind: "latency",
    name: "Slow network",
    says: "delays data to clients, by seconds:",
    at: ["namespace"],
    latency: 0.5,
  },
  {
    kind: "refuse",
    name: "Refuses connections",
    says: "new ones; open ones stay",
    at: ["namespace"],
    cuts: true,
  },
  { kind: "reset", name: "Resets connections", says: "all of them, at once", at: ["namespace"], cuts: true },
  {
    kind: "black_hole",
    name: "Black hole",
    says: "holds back data in both directions until it is healed",
    at: ["namespace"],
    cuts: true,
  },
];

/**
 * The switches of one place; call `update()` to show which are on.
 *
 * @param place - `{namespace, entity, fragment}`; null = no entity, no fragment.
 */
export function faultSwitches(place) {
  const level = place.fragment !== null ? "fragment" : place.entity !== null ? "entity" : "namespace";
  const limits = h("input", { type: "number", min: 1, step: "any", placeholder: "for ever", class: "small" });
  const share = h("input", { type: "number", min: 1, max: 100, step: "any", value: "100", class: "small" });
  const times = h("input", { type: "number", min: 1, step: 1, placeholder: "always", class: "small" });
  const options = () => ({
    duration_s: limits.value ? Number(limits.value) : undefined,
    probability: share.value && Number(share.value) < 100 ? Number(share.value) / 100 : undefined,
    count: times.value ? Number(times.value) : undefined,
  });
  const rows = SWITCHES.filter((each) => each.at.includes(level)).map((each) => row(each, place, options));
  const others = h("ul", { class: "thrown" });
  const element = h(
    "div",
    { class: "faults" },
    h("ul", { class: "switches" }, ...rows.map((each) => each.element)),
    h(
      "details",
      { class: "options" },
      h("summary", {}, "Limit the duration or the number of times"),
      h(
        "div",
        { class: "fields" },
        h("label", {}, "Duration in seconds ", limits),
        h("label", {}, "Probability in per cent ", share),
        h("label", {}, "Number of times ", times),
      ),
      h("p", { class: "muted" }, "Set these before you turn on a switch. The fault then ends by itself."),
    ),
    others,
  );
  return {
    element,
    update() {
      const all = state.namespaces.get(place.namespace)?.facts.faults ?? [];
      const here = all.filter((fault) => isAt(fault, place));
      for (const each of rows) each.update(here.filter((fault) => fault.kind === each.kind));
      const elsewhere = all.filter((fault) => !isAt(fault, place) && (level === "namespace" || affects(fault, place)));
      keyed(
        others,
        elsewhere,
        (fault) => fault.id,
        (fault) => thrown(place.namespace, fault),
        showThrown,
      );
    },
  };
}

function isAt(fault, { entity, fragment }) {
  const isEntity = (fault.entity ?? null)?.toLowerCase() === entity?.toLowerCase();
  if (!isEntity || fault.operations) return false;
  return fragment === null ? !fault.fragments : fault.fragments?.length === 1 && fault.fragments[0] === fragment;
}

function affects(fault, { entity, fragment }) {
  if (!fault.entity) return true;
  if (fault.entity.toLowerCase() !== entity?.toLowerCase()) return false;
  return fragment === null || !fault.fragments || fault.fragments.includes(fragment);
}

function row({ kind, name, says, latency, cuts }, place, options) {
  const id = `fault-${kind}-${Math.random().toString(36).slice(2)}`;
  const seconds = latency
    ? h("input", {
        type: "number",
        min: 0,
        step: "any",
        value: String(latency),
        class: "small",
        "aria-label": `${name}: seconds`,
      })
    : null;
  const button = h("button", {
    type: "button",
    role: "switch",
    class: "switch",
    "aria-checked": "false",
    "aria-labelledby": id,
    onclick: flip,
  });
  const rest = h("span", { class: "rest" });
  let thrownHere = [];

  async function flip() {
    if (thrownHere.length) {
      const ids = thrownHere.map((fault) => fault.id);
      await attempt(() =>
        Promise.all(ids.map((each) => ask("DELETE", `faults/${each}`, { namespace: place.namespace }))),
      );
      return;
    }
    if (cuts && !(await isSafeToCut(place.namespace, name))) return;
    const fault = { kind, ...options() };
    if (place.entity !== null) fault.entity = place.entity;
    if (place.fragment !== null) fault.fragments = [place.fragment];
    if (seconds) fault.latency_s = Number(seconds.value);
    await attempt(() => ask("POST", "faults", { namespace: place.namespace }, fault));
  }
  return {
    kind,
    element: h(
      "li",
      { class: "switch-row" },
      button,
      h("span", { id, class: "switch-name" }, h("strong", {}, name), h("span", { class: "muted" }, ` ${says}`)),
      seconds,
      rest,
    ),
    update(faults) {
      thrownHere = faults;
      set(button, "aria-checked", String(faults.length > 0));
      write(rest, faults.map(limitsOf).filter(Boolean).join(", "));
    },
  };
}

/** Confirm a fault of connections, which may disconnect this page as well. */
function isSafeToCut(namespace, name) {
  const port = state.about.ports[namespace];
  if (location.port !== String(port)) return true;
  const outside = state.about.http_port;
  const advice = outside
    ? `Open http://${location.hostname}:${outside}/ to heal it: faults do not affect that port.`
    : "Set a duration first, because this page cannot heal it.";
  return confirmed(
    `${name}: on the port of this page?`,
    `This page uses port ${port} and will be disconnected. ${advice}`,
    "Inject it",
  );
}

function thrown(namespace, fault) {
  const heal = () => attempt(() => ask("DELETE", `faults/${fault.id}`, { namespace }));
  return h(
    "li",
    {},
    h("span", { class: "thrown-what" }),
    h("button", { type: "button", class: "quiet", onclick: heal }, "Heal"),
  );
}

function showThrown(element, fault) {
  write(element.firstChild, faultText(fault));
}

/** A fault in one line. */
export function faultText(fault) {
  const where = fault.entity ?? "the namespace";
  const parts = fault.fragments ? ` fragment ${fault.fragments.join(", ")} of` : "";
  const only = fault.operations ? ` (${fault.operations.join(", ")} only)` : "";
  const limits = limitsOf(fault);
  return visible(`${fault.kind.replaceAll("_", " ")}:${parts} ${where}${only}${limits ? `, ${limits}` : ""}`);
}

function limitsOf(fault) {
  const parts = [];
  if (fault.duration_s !== undefined) parts.push(`${span(fault.duration_s)} left`);
  if (fault.probability !== undefined) parts.push(`${Math.round(fault.probability * 100)} %`);
  if (fault.count !== undefined) parts.push(plural(fault.count, "time"));
  if (fault.latency_s !== undefined) parts.push(`${fault.latency_s} s`);
  return parts.join(", ");
}
