/** The sessions of an entity: locks, waiting messages, and the size of the state. */

import { ask } from "./api.js";
import { attempt } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { Ago, bytes, count, plural } from "./format.js";
import { Component } from "./preact.js";
import { paced } from "./store.js";

const PAUSE_MS = 1200;

/**
 * The list.
 *
 * @param numbers - the list is loaded again when one of them changes.
 * @param choose - called with the id of the session to show messages of.
 */
export class SessionList extends Component {
  state = { sessions: [], count: 0, prefix: null };
  refresh = paced(() => this.props.isShown && this.load(), PAUSE_MS);

  componentDidMount() {
    if (this.props.isShown) this.load();
  }

  componentDidUpdate(before) {
    const { isShown, numbers } = this.props;
    if (isShown && !before.isShown) this.load();
    else if (numbers.join() !== before.numbers.join()) this.refresh();
  }

  async load() {
    const { namespace, path } = this.props.place;
    const { prefix } = this.state;
    const said = await attempt(() => ask("GET", "sessions", { namespace, entity: path, prefix }));
    if (said) this.setState({ sessions: said.sessions, count: said.count });
  }

  render({ choose }, { sessions, count: all, prefix }) {
    const filter = ({ target }) => this.setState({ prefix: target.value || null }, this.refresh);
    const none = prefix
      ? "No session id begins with that text."
      : "No sessions. The first message with a session id creates one: send one.";
    return html`
      <div class="toolbar">
        <input type="search" placeholder="Begins with" aria-label="Sessions that begin with" oninput=${filter} />
      </div>
      <div class="scroll">
        <table class="sessions" hidden=${!sessions.length}>
          <caption class="hearable">Sessions</caption>
          <thead>
            <tr>
              <th scope="col">session</th>
              <th scope="col" class="number">messages</th>
              <th scope="col">locked</th>
              <th scope="col">state</th>
              <th scope="col" class="number">fragment</th>
            </tr>
          </thead>
          <tbody>${sessions.map((session) => row(session, choose))}</tbody>
        </table>
      </div>
      <p class="empty" hidden=${sessions.length > 0}>${none}</p>
      <p class="note">
        ${all > sessions.length && `The first ${count(sessions.length)} of ${plural(all, "session")}.`}
      </p>`;
  }
}

function row(session, choose) {
  const { session_id: id, locked_until: until, state_bytes: size } = session;
  return html`
    <tr key=${id}>
      <th scope="row">
        <button type="button" class="link" onclick=${() => choose(id)}>${visible(id)}</button>
      </th>
      <td class="number">${count(session.message_count)}</td>
      <td>
        <span>${session.is_locked ? `held, ${plural(session.held_count, "message")} taken` : "free"}</span>${" "}
        <${Ago} at=${until} class="muted" hidden=${until === null} />
      </td>
      <td>${size === null ? "none" : bytes(size)}</td>
      <td class="number">${session.fragment}</td>
    </tr>`;
}
