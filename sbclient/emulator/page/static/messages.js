/** The list of messages or dead letters of a queue, read without locks and kept up to date. */

import { ask } from "./api.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { Ago, bytes, count, plural } from "./format.js";
import { isSequenceNumber } from "./names.js";
import { Component } from "./preact.js";
import { isPartitioned, paced } from "./store.js";

const PAGE = 50;
const PAUSE_MS = 1200;

/** The columns that are hidden while they are empty, with their field. */
const OPTIONAL = [
  ["id", "message_id"],
  ["session", "session_id"],
  ["subject", "subject"],
];

/** The columns of messages, and those of dead letters. */
const HEADS = ["number", "fragment", "id", "session", "subject", "enqueued", "size", "body"];
const DEAD_HEADS = ["number", "fragment", "reason", "id", "session", "enqueued", "size", "body"];

/**
 * The list.
 *
 * @param place - `{namespace, path}`; the path may be that of a dead-letter queue.
 * @param isDead - whether they are dead letters.
 * @param isShown - whether the list is visible; only then it is loaded.
 * @param numbers - the list is loaded again when one of them changes.
 * @param fragment, session - show only those of a fragment and of a session; null = all.
 * @param showAll - called with "fragment" or "session" to show all again.
 * @param open - called with the sequence number of a message to show.
 * @param empty - the text that is shown if the list is empty, and `children` a hint below it.
 */
export class MessageList extends Component {
  state = { messages: [], next: null, chosen: new Set(), text: null, order: this.props.isDead ? "newest" : "oldest" };
  loads = 0;
  refresh = paced(() => this.props.isShown && this.load(true), PAUSE_MS);

  componentDidMount() {
    if (this.props.isShown) this.load();
  }

  componentDidUpdate(before) {
    const { isShown, fragment, session, numbers } = this.props;
    const isOther = fragment !== before.fragment || session !== before.session;
    if (isShown && (isOther || !before.isShown)) this.load();
    else if (numbers.join() !== before.numbers.join()) this.refresh();
  }

  async load(isQuiet = false, changes = {}) {
    const ticket = ++this.loads;
    this.setState(changes);
    const wanted = { ...this.state, ...changes };
    const most = isQuiet ? Math.min(200, Math.max(PAGE, wanted.messages.length)) : PAGE;
    const page = await attempt(() => this.list(most, null, wanted));
    if (!page || ticket !== this.loads) return;
    const numbers = new Set(page.messages.map((message) => message.sequence_number));
    const chosen = new Set([...this.state.chosen].filter((number) => numbers.has(number)));
    this.setState({ messages: page.messages, next: page.next, chosen });
  }

  async loadMore() {
    const page = await attempt(() => this.list(PAGE, this.state.next, this.state));
    if (!page) return;
    const { messages } = this.state;
    const known = new Set(messages.map((message) => message.sequence_number));
    const more = page.messages.filter((message) => !known.has(message.sequence_number));
    this.setState({ messages: [...messages, ...more], next: page.next });
  }

  async list(most, places, { order, text }) {
    const { place, fragment, session } = this.props;
    const { namespace, path: entity } = place;
    const query = { namespace, entity, count: most, places, order, fragment, session, text };
    try {
      return await ask("GET", "messages", query);
    } catch (error) {
      if (error.status === 404) return { messages: [], next: null };
      throw error;
    }
  }

  filter = ({ target }) => this.load(false, { text: target.value.trim() || null });

  search = async (event) => {
    event.preventDefault();
    const text = event.target.querySelector("input").value.trim();
    await this.load(false, { text: text || null });
    if (isSequenceNumber(text) && !this.state.messages.length) this.props.open(text);
  };

  choose(numbers, isChosen) {
    const chosen = new Set(this.state.chosen);
    for (const number of numbers) chosen[isChosen ? "add" : "delete"](number);
    this.setState({ chosen });
  }

  /** Send a request about some messages, or all; resolves to its answer. */
  async act(what, numbers) {
    const { namespace, path } = this.props.place;
    const body = numbers === null ? { entity: path } : { entity: path, sequence_numbers: numbers };
    const done = await attempt(() => ask("POST", what, { namespace }, body));
    this.load(true, { chosen: new Set() });
    return done;
  }

  removeChosen = async () => {
    const numbers = [...this.state.chosen];
    const what = plural(numbers.length, "message");
    const explanation =
      `They will be deleted from ${this.props.place.path}, also locked ones. This cannot be undone.`;
    if (!(await confirmed(`Delete ${what}?`, explanation, `Delete ${what}`))) return;
    const done = await this.act("purge", numbers);
    if (done) notify(`Deleted ${plural(done.purged, "message")}.`);
  };

  purgeAll = async () => {
    const explanation = `All messages of ${this.props.place.path} will be deleted. This cannot be undone.`;
    if (!(await confirmed("Purge these dead letters?", explanation, "Purge all dead letters"))) return;
    const done = await this.act("purge", null);
    if (done) notify(`Purged ${plural(done.purged, "dead letter")}.`);
  };

  async resubmit(numbers) {
    const explanation =
      "Each returns to its queue as a new message: with a new time to live and no failed delivery.";
    if (numbers === null && !(await confirmed("Resubmit all dead letters?", explanation, "Resubmit all"))) return;
    const done = await this.act("resubmit", numbers);
    if (!done) return;
    const held = done.held ? `; ${count(done.held)} more are locked` : "";
    const sessionless = done.sessionless ? `; ${count(done.sessionless)} have no session and stay` : "";
    notify(`Resubmitted ${plural(done.resubmitted, "message")}${held}${sessionless}.`);
  }

  render({ isDead, fragment, session, place, empty, children }, { messages, next, chosen, text, order }) {
    const isFiltered = fragment !== null || session !== null || text !== null;
    const hidden = OPTIONAL.filter(([, field]) => messages.every((message) => (message[field] ?? null) === null));
    const without = [...hidden.map(([name]) => name), ...(isPartitioned(place) ? [] : ["fragment"])];
    return html`
      <div class="message-list">
        ${this.toolbar(this.props, this.state)}
        <div class="scroll">
          <table class="messages ${without.map((name) => `without-${name}`).join(" ")}" hidden=${!messages.length}>
            <caption class="hearable">${isDead ? "Dead letters" : "Messages"}</caption>
            <thead>
              <tr>
                <td class="choice">
                  <input
                    type="checkbox" aria-label="Choose all shown messages"
                    checked=${chosen.size > 0 && chosen.size === messages.length}
                    indeterminate=${chosen.size > 0 && chosen.size < messages.length}
                    onchange=${({ target }) =>
                      this.choose(messages.map((message) => message.sequence_number), target.checked)}
                  />
                </td>
                ${(isDead ? DEAD_HEADS : HEADS).map((head) => html`<th scope="col" class="head-${head}">${head}</th>`)}
              </tr>
            </thead>
            <tbody>${messages.map((message) => this.row(message))}</tbody>
          </table>
        </div>
        <div class="empty" hidden=${messages.length > 0}>
          <p>${isFiltered ? "No messages match the filter." : empty}</p>
          ${!isFiltered && children}
        </div>
        <p class="more">
          <button type="button" class="quiet" hidden=${next === null} onclick=${() => this.loadMore()}>
            ${text === null ? "Show more" : "Search further"}
          </button>
        </p>
      </div>`;
  }

  toolbar({ isDead, fragment, session, showAll }, { messages, chosen, order }) {
    const chip = (what, name) => html`
      <button type="button" class="chip" aria-label="${name}: show all again" onclick=${() => showAll(what)}>
        ${name} ✕
      </button>`;
    const isEmpty = !messages.length;
    return html`
      <div class="toolbar">
        <select aria-label="Order" value=${order} onchange=${({ target }) => this.load(false, { order: target.value })}>
          <option value="oldest">oldest first</option>
          <option value="newest">newest first</option>
        </select>
        <form class="find" role="search" onsubmit=${this.search}>
          <input
            type="search" placeholder="Filter: text, name=value, number" autocomplete="off" spellcheck=${false}
            aria-label="Filter by text, property=value or sequence number" oninput=${this.filter}
          />
        </form>
        <span class="chips">
          ${fragment !== null && chip("fragment", `fragment ${fragment}`)}
          ${session !== null && chip("session", `session ${visible(session)}`)}
        </span>
        <span class="selection" hidden=${!chosen.size}>
          <span class="muted">${count(chosen.size)} chosen</span>
          ${isDead && html`<button type="button" onclick=${() => this.resubmit([...chosen])}>Resubmit</button>`}
          <button type="button" class="quiet danger-text" onclick=${this.removeChosen}>Delete…</button>
        </span>
        <span class="push"></span>
        ${
          isDead &&
          html`
            <button type="button" disabled=${isEmpty} onclick=${() => this.resubmit(null)}>Resubmit all…</button>
            <button type="button" class="quiet danger-text" disabled=${isEmpty} onclick=${this.purgeAll}>
              Purge…
            </button>`
        }
      </div>`;
  }

  row(message) {
    const { isDead, open } = this.props;
    const number = message.sequence_number;
    const show = () => open(String(number));
    const state = message.is_locked ? "locked" : message.state === "active" ? "" : message.state;
    const cells = {
      number: html`<button type="button" class="link" onclick=${show}>${String(number)}</button>`,
      fragment: message.fragment,
      reason: visible(message.dead_letter_reason ?? "none given"),
      id: visible(message.message_id ?? ""),
      session: visible(message.session_id ?? ""),
      subject: visible(message.subject ?? ""),
      enqueued: html`<${Ago} at=${message.scheduled_at ?? message.enqueued_at} />`,
      size: bytes(message.size_bytes),
      body: html`
        ${state && html`<span class="mark mark-${state}">${state}</span>`}
        ${message.delivery_count > 0 && html`<span class="mark">${message.delivery_count}× failed</span>`}
        ${message.preview === null ? html`<em class="muted">binary</em>` : message.preview}`,
    };
    return html`
      <tr
        key=${number} class=${message.is_locked ? "held" : ""}
        onclick=${({ target }) => !target.closest("input, button") && show()}
      >
        <td class="choice">
          <input
            type="checkbox" aria-label="Choose message ${number}" checked=${this.state.chosen.has(number)}
            onchange=${({ target }) => this.choose([number], target.checked)}
          />
        </td>
        ${(isDead ? DEAD_HEADS : HEADS).map(
          (head) => html`<td class="cell-${head}" data-head=${head}>${cells[head]}</td>`,
        )}
      </tr>`;
  }
}
