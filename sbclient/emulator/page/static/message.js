/** One message: its body, its properties, and actions. */

import { ask } from "./api.js";
import { bodyViews } from "./body.js";
import { CopyButton } from "./connection.js";
import { attempt, confirmed, openWindow, notify } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { Ago, bytes, span } from "./format.js";
import { Component } from "./preact.js";
import { isPartitioned } from "./store.js";

const TIMESTAMPS = new Set(["enqueued_at", "scheduled_at", "expires_at", "locked_until"]);
const FACTS = [
  ["message_id", "message id"],
  ["session_id", "session id"],
  ["partition_key", "partition key"],
  ["subject", "subject"],
  ["content_type", "content type"],
  ["correlation_id", "correlation id"],
  ["to", "to"],
  ["reply_to", "reply to"],
  ["reply_to_session_id", "reply to session"],
  ["dead_letter_reason", "dead-letter reason"],
  ["dead_letter_description", "description"],
  ["dead_letter_source", "dead-lettered from"],
  ["destination", "destination"],
  ["state", "state"],
  ["enqueued_at", "enqueued"],
  ["scheduled_at", "scheduled for"],
  ["expires_at", "expires"],
  ["locked_until", "locked until"],
  ["time_to_live_s", "time to live"],
  ["delivery_count", "failed deliveries"],
  ["sequence_number", "sequence number"],
  ["original_sequence_number", "original sequence number"],
  ["fragment", "fragment"],
  ["size_bytes", "size"],
];

/**
 * Open a message; resolves to a function that closes it.
 *
 * @param place - `{namespace, path}` of the queue, or of the dead-letter queue behind it.
 * @param changed - called after the message was removed or moved.
 * @param closed - called when it is closed, or if it does not exist.
 */
export async function openMessage(place, number, changed, closed) {
  const message = await attempt(() =>
    ask("GET", `messages/${number}`, { namespace: place.namespace, entity: place.path }),
  );
  if (!message) {
    changed();
    closed();
    return () => {};
  }
  const isDead = /\/\$deadletterqueue$/i.test(place.path);
  const said = { entity: place.path, sequence_numbers: [message.sequence_number] };
  const done = (text) => {
    element.close();
    notify(text);
    changed();
  };
  const resubmit = async () => {
    const answer = await attempt(() => ask("POST", "resubmit", { namespace: place.namespace }, said));
    if (!answer) return;
    if (answer.held) done("A receiver has locked it: it was not resubmitted.");
    else if (answer.sessionless) done("It has no session, and its queue requires one: it was not resubmitted.");
    else done(`Resubmitted message ${number}.`);
  };
  const remove = async () => {
    const sure = await confirmed(
      "Delete this message?",
      "It will be deleted, also if a receiver has locked it. This cannot be undone.",
      "Delete it",
    );
    if (sure && (await attempt(() => ask("POST", "purge", { namespace: place.namespace }, said))))
      done(`Deleted message ${number}.`);
  };
  const content = () => html`
    <div class="message-parts">
      <${Body} body=${message.body} />
      ${factsPart(message, isPartitioned(place))}
      ${propertiesPart(message.application_properties)}
    </div>
    <div class="buttons">
      <${CopyButton}
        name="Copy link to this message" text=${async () => location.href} said="Copied the address." word="Copy link"
      />
      <button type="button" class="danger" onclick=${remove}>Delete…</button>
      ${isDead && html`<button type="button" class="primary" onclick=${resubmit}>Resubmit</button>`}
    </div>`;
  const element = openWindow(`Message ${number}`, "message", content);
  element.addEventListener("close", closed);
  return () => element.close();
}

class Body extends Component {
  views = bodyViews(this.props.body);

  render({ body }, { shown = this.views[0] }) {
    const text = async (button) => button.closest("section").querySelector(".body-place").textContent;
    const kind = `${body.type === "data" ? "" : `, AMQP ${body.type}`}${body.is_cut ? ", cut" : ""}`;
    return html`
      <section class="message-body">
        <div class="part-head">
          <h3>Body</h3>
          <span class="muted">${bytes(body.size_bytes)}${kind}</span>
          <span class="segments" role="group" aria-label="Show the body as">
            ${this.views.map(
              (view) => html`
                <button
                  type="button" class="quiet" aria-pressed=${view === shown}
                  onclick=${() => this.setState({ shown: view })}
                >
                  ${view.name}
                </button>`,
            )}
          </span>
          <${CopyButton} name="Copy the body" text=${text} said="Copied the body as shown." look="push" />
        </div>
        <div class="body-place" key=${shown.name}>${shown.view}</div>
      </section>`;
  }
}

function factsPart(message, hasFragments) {
  const isGiven = (name) => message[name] !== null && message[name] !== undefined;
  const rows = FACTS.filter(([name]) => isGiven(name) && (name !== "fragment" || hasFragments));
  return html`
    <section>
      <h3>Properties</h3>
      <dl class="facts">
        ${rows.map(([name, word]) => html`<dt>${word}</dt><dd>${shown(name, message[name])}</dd>`)}
      </dl>
    </section>`;
}

function shown(name, value) {
  if (TIMESTAMPS.has(name)) return html`<${Ago} at=${value} />`;
  if (name === "time_to_live_s") return span(value);
  if (name === "size_bytes") return bytes(value);
  return visible(value);
}

function propertiesPart(properties) {
  const rows = properties.map(
    ({ name, type, value }) => html`
      <tr>
        <th scope="row">${visible(name)}</th>
        <td class="value">${visible(value)}</td>
        <td class="muted">${type}</td>
      </tr>`,
  );
  return html`
    <section>
      <h3>Application properties</h3>
      ${rows.length ? html`<table class="properties"><tbody>${rows}</tbody></table>` : html`<p class="empty">None.</p>`}
    </section>`;
}
