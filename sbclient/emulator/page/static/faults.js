/** Switches that inject and heal faults of a namespace, an entity, or one fragment. */

import { ask } from "./api.js";
import { attempt, confirmed } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { plural, span } from "./format.js";
import { Component } from "./preact.js";
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

/** The switches of one place, `{namespace, entity, fragment}`; null = no entity, no fragment. */
export class FaultSwitches extends Component {
  options = {};
  prefix = `fault-${Math.random().toString(36).slice(2)}`;

  /** Inject a fault, or heal those that a switch has injected. */
  async flip({ kind, name, latency, cuts }, thrown) {
    const { namespace, entity, fragment } = this.props;
    if (thrown.length) {
      await Promise.all(thrown.map(({ id }) => ask("DELETE", `faults/${id}`, { namespace })));
      return;
    }
    if (cuts && !(await isSafeToCut(namespace, name))) return;
    const { duration, share, times, [kind]: seconds = latency } = this.options;
    const fault = { kind, latency_s: latency && Number(seconds) };
    if (duration) fault.duration_s = Number(duration);
    if (share && Number(share) < 100) fault.probability = Number(share) / 100;
    if (times) fault.count = Number(times);
    if (entity !== null) fault.entity = entity;
    if (fragment !== null) fault.fragments = [fragment];
    await ask("POST", "faults", { namespace }, fault);
  }

  input(name, rest) {
    const note = ({ target }) => Object.assign(this.options, { [name]: target.value });
    return html`<input type="number" step="any" class="small" oninput=${note} ...${rest} />`;
  }

  switchRow(each, thrown) {
    const { kind, name, says, latency } = each;
    const id = `${this.prefix}-${kind}`;
    return html`
      <li class="switch-row" key=${kind}>
        <button
          type="button" role="switch" class="switch" aria-checked=${thrown.length > 0} aria-labelledby=${id}
          onclick=${() => attempt(() => this.flip(each, thrown))}
        ></button>
        <span id=${id} class="switch-name"><strong>${name}</strong><span class="muted">${` ${says}`}</span></span>
        ${latency && this.input(kind, { min: 0, defaultValue: latency, "aria-label": `${name}: seconds` })}
        <span class="rest">${thrown.map(limitsOf).filter(Boolean).join(", ")}</span>
      </li>`;
  }

  render(place) {
    const { namespace, entity, fragment } = place;
    const level = fragment !== null ? "fragment" : entity !== null ? "entity" : "namespace";
    const all = state.namespaces.get(namespace)?.facts.faults ?? [];
    const here = all.filter((fault) => isAt(fault, place));
    const others = all.filter((fault) => !isAt(fault, place) && (level === "namespace" || affects(fault, place)));
    const heal = (fault) => attempt(() => ask("DELETE", `faults/${fault.id}`, { namespace }));
    return html`
      <div class="faults">
        <ul class="switches">
          ${SWITCHES.filter((each) => each.at.includes(level)).map((each) =>
            this.switchRow(each, here.filter((fault) => fault.kind === each.kind)),
          )}
        </ul>
        <details class="options">
          <summary>Limit the duration or the number of times</summary>
          <div class="fields">
            <label>Duration in seconds ${this.input("duration", { min: 1, placeholder: "for ever" })}</label>
            <label>Probability in per cent ${this.input("share", { min: 1, max: 100, defaultValue: 100 })}</label>
            <label>Number of times ${this.input("times", { min: 1, step: 1, placeholder: "always" })}</label>
          </div>
          <p class="muted">Set these before you turn on a switch. The fault then ends by itself.</p>
        </details>
        <ul class="thrown">
          ${others.map(
            (fault) => html`
              <li key=${fault.id}>
                <span class="thrown-what">${faultText(fault)}</span>
                <button type="button" class="quiet" onclick=${() => heal(fault)}>Heal</button>
              </li>`,
          )}
        </ul>
      </div>`;
  }
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

/** A fault in one line. */
function faultText(fault) {
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
