/** Events of the namespaces, and of pairs of clients in the same process, newest first. */

import { html, visible } from "./dom.js";
import { minutes, timestamp, timeOfDay } from "./format.js";
import { state } from "./store.js";

const SHOWN = 40;
const WORDS = {
  "entity.created": "created",
  "entity.updated": "changed",
  "entity.deleted": "deleted",
  "entity.elements_ignored": "has elements out of order, which Service Bus does not apply",
  "entity.refused": "cannot be created or changed like this",
  "fault.thrown": "fault injected",
  "fault.healed": "fault healed",
  "fault.all_healed": "all faults healed",
  "namespace.purged": "purged",
  "namespace.reset": "reset to the start",
  "dead_letters.resubmitted": "dead letters resubmitted",
  "failover.suspected": "suspected: the failover interval begins",
  "failover.engaged": "fails over: sends go to the backlog",
  "failover.recovered": "has recovered: sends go to the primary",
  "failover.cleared": "available again: no failover",
  "failover.never_reached": "fails over, but the primary has never answered this client",
  "failover.entity_missing": "does not exist in the primary: its sends are not diverted any more",
  "backlog.quarantined": "failed: senders use other backlog queues",
  "backlog.usable": "accepts messages again",
  "syphon.queue_unreachable": "cannot be received from: its messages wait",
  "syphon.parked_not_received": "does not deliver its parked messages",
  "syphon.dead_lettered": "has a new dead letter: the message cannot be forwarded",
  "syphon.destination_unavailable": "rejects messages of the syphon",
  "syphon.destination_recovered": "accepts messages of the syphon again",
  "syphon.redirected": "is delivered to the secondary: the primary rejects its messages",
  "syphon.not_redirected": "cannot be delivered to the secondary either: its messages wait",
  "syphon.redirected_in_doubt": "may have messages in both namespaces: a send was not answered",
  "syphon.redirect_ended": "is delivered to the primary again",
  "receiver.side_left_out": "is received from one namespace only",
  "receiver.side_is_back": "is received from both namespaces again",
};
const KINDS = {
  "entity.elements_ignored": "warn",
  "entity.refused": "warn",
  "fault.thrown": "bad",
  "failover.suspected": "warn",
  "failover.engaged": "bad",
  "failover.recovered": "good",
  "failover.cleared": "good",
  "fault.healed": "good",
  "fault.all_healed": "good",
};

/** The list. */
export function Activity() {
  const events = eventsOf().slice(-SHOWN).reverse();
  return html`
    <section class="panel" aria-labelledby="activity-head">
      <h2 id="activity-head">Activity</h2>
      <p class="empty" hidden=${events.length > 0}>
        No events yet. Changes of the namespace, by you and by others, are listed here.
      </p>
      <ol class="activity" tabindex="0" aria-labelledby="activity-head" hidden=${!events.length}>
        ${events.map(line)}
      </ol>
    </section>`;
}

function eventsOf() {
  const own = state.events.map((event, at) => ({
    ...event,
    name: event.event,
    key: `own ${event.at} ${event.event} ${at}`,
  }));
  const reported = state.pairs.flatMap((pair) =>
    (pair.client?.events ?? []).map((event) => ({
      ...event,
      namespace: pair.primary,
      key: `${event.at} ${event.name} ${event.path}`,
    })),
  );
  return [...own, ...reported].sort((a, b) => a.at - b.at);
}

function line(event) {
  const { name, at, namespace, key } = event;
  const when = state.story ? minutes(at - state.story.started_at) : timeOfDay(at);
  return html`
    <li key=${key}>
      <time title=${timestamp(at)}>${when}</time>
      <span class="state-dot" data-kind=${KINDS[name] ?? "calm"}></span>
      <span>
        <strong>${visible(event.path ?? event.entity ?? namespace ?? "")}</strong>${` ${WORDS[name] ?? name}`}
        <span class="muted">${factsOf(event)}</span>
      </span>
    </li>`;
}

function factsOf(event) {
  const parts = [];
  if (event.rule) parts.push(`rule ${event.rule}`);
  if (event.reason) parts.push(event.reason);
  if (event.elements) parts.push(event.elements.join(", "));
  if (event.kind && event.event === "fault.thrown") parts.push(event.kind.replaceAll("_", " "));
  if (event.fragments) parts.push(`fragment ${event.fragments.join(", ")}`);
  if (event.count !== undefined && event.count !== null && event.event !== "fault.thrown")
    parts.push(`${event.count} messages`);
  const facts = event.facts ?? {};
  if (facts.error && KINDS[event.name] !== "good") parts.push(facts.error);
  else if (facts.reason) parts.push(facts.reason.replaceAll("_", " "));
  if (event.namespace && (event.path ?? event.entity)) parts.push(event.namespace);
  return parts.length ? ` · ${visible(parts.join(" · "))}` : "";
}
