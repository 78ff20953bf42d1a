/** One entity: its numbers, fragments, throughput and messages. */

import { About } from "./about.js";
import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { CommandHint, quoted } from "./connection.js";
import { attempt, confirmed, notify } from "./dialogs.js";
import { html, visible } from "./dom.js";
import { deleteEntity, openChange } from "./entity_form.js";
import { FaultSwitches } from "./faults.js";
import { bytes, count, plural } from "./format.js";
import { Fragments } from "./fragments.js";
import { openMessage } from "./message.js";
import { MessageList } from "./messages.js";
import { addressOf } from "./names.js";
import { stateOf } from "./pictures.js";
import { Component } from "./preact.js";
import { openSend } from "./send.js";
import { SessionList } from "./sessions.js";
import { rowOf, state } from "./store.js";
import { Panel, TabBar } from "./tabs.js";
import { RuleList, splitPath, SubscriptionList } from "./topic.js";

const FIGURES = [
  ["active", "active"],
  ["locked", "locked"],
  ["scheduled", "scheduled"],
  ["deferred", "deferred"],
  ["dead", "dead-lettered"],
  ["sessions", "sessions"],
];

const STORED = ["active", "scheduled", "deferred", "dead", "transfer", "transfer_dead"];

const TABS = {
  subscriptions: "Subscriptions",
  messages: "Messages",
  dead: "Dead letters",
  sessions: "Sessions",
  rules: "Rules",
  faults: "Faults",
  about: "About",
};

const NO_DEAD_LETTERS = "No dead letters. Messages that cannot be delivered, or that a receiver rejects, arrive here.";

const LEGEND = html`
  <ul class="legend">
    <li><span class="swatch swatch-active"></span>active</li>
    <li><span class="swatch swatch-locked"></span>locked by a receiver</li>
    <li><span class="swatch swatch-scheduled"></span>scheduled</li>
    <li><span class="swatch swatch-deferred"></span>deferred</li>
  </ul>`;

/** The figures that a topic has, which stores only scheduled messages. */
const OF_TOPIC = ["scheduled"];

/**
 * The view of `namespace` and `path`, with an open `tab`, and a message in a dialog if there is a `number`.
 *
 * @param go - `show(address)` and `leave(address)`: go to an address, or back from it.
 * @param ready - called with this component, for shortcuts, and with null at the end.
 */
export class EntityView extends Component {
  state = { fragment: null, session: null, reloads: 0 };
  isSubscription = /\/subscriptions\//i.test(this.props.path);
  opened = null; // the message that is shown

  componentDidMount() {
    this.props.ready(this);
    this.showMessage();
  }

  componentDidUpdate() {
    this.showMessage();
  }

  componentWillUnmount() {
    this.props.ready(null);
    this.close();
  }

  get row() {
    return rowOf(this.props.namespace, this.props.path);
  }

  reload = () => this.setState({ reloads: this.state.reloads + 1 });

  close() {
    const { opened } = this;
    this.opened = null;
    opened?.close?.();
  }

  /** Show the message in the address, or none, once the entity is loaded. */
  async showMessage() {
    const { namespace, path, number, go } = this.props;
    if (!this.row) return;
    const tab = openTab(this.row, this.props.tab);
    if (number === null ? !this.opened : this.opened?.number === number && this.opened.tab === tab) return;
    this.close();
    if (number === null) return;
    const mine = { tab, number };
    this.opened = mine;
    const closed = () => {
      if (this.opened !== mine) return;
      this.opened = null;
      go.leave(addressOf(namespace, path, tab));
    };
    const close = await openMessage(placeOf(this.props, tab), number, this.reload, closed);
    mine.close = close;
    if (this.opened !== mine) close();
  }

  /** The number of all messages, or of the dead letters, of the entity and of its subscriptions. */
  countOf(what) {
    const { namespace, path } = this.props;
    const names = what === "dead" ? ["dead"] : STORED;
    const isHere = (row) => row.path === path || row.path.startsWith(`${path}/Subscriptions/`);
    const rows = [...state.namespaces.get(namespace).rows.values()].filter(isHere);
    return rows.flatMap((row) => names.map((name) => row[name])).reduce((sum, each) => sum + each, 0);
  }

  send = () => {
    if (this.row && !this.isSubscription) openSend(this.props.namespace, this.props.path, this.reload);
  };

  purge = async () => {
    const { namespace, path } = this.props;
    const below = this.row.kind === "topic" ? " of it and of its subscriptions" : "";
    const [all, dead] = [plural(this.countOf("stored"), "message"), plural(this.countOf("dead"), "dead letter")];
    const explanation = `${all}${below} will be deleted, with ${dead} and with locked messages. This cannot be undone.`;
    if (!(await confirmed(`Purge ${path}?`, explanation, "Purge"))) return;
    const done = await attempt(() => ask("POST", "purge", { namespace }, { entity: path }));
    if (done) notify(`Purged ${plural(done.purged, "message")} of ${path}.`);
    this.reload();
  };

  remove = async () => {
    const { namespace, path, go } = this.props;
    const { kind } = this.row;
    const parts = [plural(this.countOf("stored"), "message")];
    if (kind === "topic") parts.push(plural(state.detail?.subscriptions?.length ?? 0, "subscription"));
    const explanation = `The ${kind} will be deleted with ${parts.join(" and ")}.`;
    if (await deleteEntity(namespace, path, explanation)) go.show("#/");
  };

  render({ namespace, path }) {
    const { row } = this;
    const isMissing = !row && state.link === "live";
    return html`
      <div class="view">
        <div class="view-head">
          <p class="crumbs">
            <a href="#/">Overview</a>${" / "}<a href="#/${encodeURIComponent(namespace)}">${visible(namespace)}</a>
          </p>
          <h1>${visible(path)}</h1>
          ${row && this.head(row)}
        </div>
        <p class="panel empty" role="status" hidden=${!isMissing}>
          ${`${path} does not exist in ${namespace}: it was deleted, or not created yet. `}
          <a href="#/">Back to the overview</a>
        </p>
        ${row && this.content(row)}
      </div>`;
  }

  head(row) {
    const { word, kind } = stateOf(row.state);
    const badges = [
      row.kind,
      row.status !== "Active" && row.status,
      row.fragments > 1 && `partitioned, ${row.fragments} fragments`,
      row.requires_session && "sessions",
      row.forwards_to && `forwards to ${visible(row.forwards_to)}`,
    ].filter(Boolean);
    const change = () => openChange(this.props.namespace, this.props.path);
    return html`
      <span class="state" data-kind=${kind}>${row.is_partial ? `${word}, partly` : word}</span>
      <span class="badges">${badges.map((each) => html`<span class="badge" key=${each}>${each}</span>`)}</span>
      <span class="push actions">
        <button type="button" class="danger-text" onclick=${this.remove}>Delete…</button>
        <button type="button" class="danger-text" onclick=${this.purge}>Purge…</button>
        <button type="button" onclick=${change}>Change…</button>
        ${!this.isSubscription && html`<button type="button" class="primary" onclick=${this.send}>Send…</button>`}
      </span>`;
  }

  content(row) {
    const { path } = this.props;
    const { fragment } = this.state;
    const detail = state.detail?.path.toLowerCase() === path.toLowerCase() ? state.detail : null;
    const isShown = (key) =>
      row.kind === "topic" ? OF_TOPIC.includes(key) : key !== "sessions" || row.requires_session;
    const choose = (index) => this.setState({ fragment: index });
    return html`
      <div class="content">
        <section class="panel at-a-glance" aria-label="Numbers of ${path}">
          <dl class="figures">
            ${FIGURES.map(
              ([key, word]) => html`
                <div class="is-${key}" hidden=${!isShown(key)}>
                  <dt>${word}</dt><dd class=${row[key] ? "" : "none"}>${count(row[key])}</dd>
                </div>`,
            )}
            <div><dt>size</dt><dd>${bytes(row.size_bytes)}</dd></div>
          </dl>
          <${Chart} what=${path} history=${state.detailHistory} />
        </section>
        <section class="panel" aria-label="Fragments" hidden=${row.fragments < 2}>
          <h2>Fragments</h2>
          <div class="fragment-box">
            <${Fragments} parts=${detail?.parts ?? []} chosen=${fragment} choose=${choose} />
          </div>
          ${LEGEND}
        </section>
        ${this.tabs(row, detail)}
      </div>`;
  }

  tabs(row, detail) {
    const { namespace, path, go } = this.props;
    const { fragment, session, reloads } = this.state;
    const { arrived, left, locked, scheduled, deferred, dead, sessions } = row;
    const open = openTab(row, this.props.tab);
    const stored = row.active + scheduled + deferred;
    const badges = {
      subscriptions: detail?.subscriptions?.length ?? "",
      messages: stored ? count(stored) : "",
      dead: dead ? count(dead) : "",
      sessions: sessions ? count(sessions) : "",
      rules: detail?.rules?.length ?? "",
    };
    const tabs = Object.entries(TABS).map(([id, name]) => ({ id, name, badge: badges[id], isShown: hasTab(row, id) }));
    const show = (tab, number = null) => go.show(addressOf(namespace, path, tab, number));
    const list = (tab) => ({
      place: placeOf(this.props, tab),
      isDead: tab === "dead",
      isShown: open === tab,
      fragment,
      session: tab === "dead" ? null : session,
      showAll: (what) => this.setState({ [what]: null }),
      open: (number) => show(tab, number),
    });
    const chooseSession = (id) => {
      this.setState({ session: id });
      show("messages");
    };
    const more = row.fragments > 1 ? " Choose a fragment in the picture above to affect it alone." : "";
    const affected =
      fragment === null ? `Faults of the whole entity.${more}` : `Faults of fragment ${fragment} alone.`;
    return html`
      <section class="panel tabbed" aria-label="Contents of ${path}">
        <${TabBar} tabs=${tabs} open=${open} choose=${show} />
        <${Panel} id="subscriptions" open=${open}>
          <${SubscriptionList} namespace=${namespace} topic=${path} detail=${detail} />
        <//>
        <${Panel} id="messages" open=${open}>
          <${MessageList}
            ...${list("messages")} numbers=${[arrived, left, locked, scheduled, deferred, reloads]}
            empty=${emptyText(row)}
          >
            <${CommandHint} namespace=${namespace} command=${sendCommand(row)} />
          <//>
        <//>
        <${Panel} id="dead" open=${open}>
          <${MessageList} ...${list("dead")} numbers=${[dead, left, reloads]} empty=${NO_DEAD_LETTERS} />
        <//>
        <${Panel} id="sessions" open=${open}>
          <${SessionList}
            place=${this.props} isShown=${open === "sessions"} numbers=${[arrived, left, locked, sessions]}
            choose=${chooseSession}
          />
        <//>
        <${Panel} id="rules" open=${open}><${RuleList} namespace=${namespace} path=${path} detail=${detail} /><//>
        <${Panel} id="faults" open=${open}>
          <p class="note">${affected}</p>
          <${FaultSwitches} key=${fragment} namespace=${namespace} entity=${path} fragment=${fragment} />
        <//>
        <${Panel} id="about" open=${open}>${detail && html`<${About} row=${row} detail=${detail} />`}<//>
      </section>`;
  }
}

/** The queue of a tab: of the entity, or of its dead letters. */
function placeOf({ namespace, path }, tab) {
  return { namespace, path: tab === "dead" ? `${path}/$DeadLetterQueue` : path };
}

function hasTab(row, tab) {
  if (tab === "sessions") return row.requires_session;
  if (tab === "subscriptions") return row.kind === "topic";
  if (tab === "rules") return row.kind === "subscription";
  return tab === "dead" ? row.kind !== "topic" : Object.hasOwn(TABS, tab);
}

/** The tab that is open: the one in the address if the entity has it. */
function openTab(row, tab) {
  if (hasTab(row, tab)) return tab;
  return row.kind === "topic" ? "subscriptions" : "messages";
}

function emptyText({ kind }) {
  if (kind === "subscription") return "No messages. Send one to the topic, which arrives here if a rule accepts it:";
  if (kind === "queue") return "No messages. Send one with the button above, or with:";
  return "No scheduled messages; others go to the subscriptions. Send one with the button above, or with:";
}

/** The command that sends a message to a queue or topic, or to the topic of a subscription. */
function sendCommand(row) {
  const [path] = splitPath(row.path);
  const session = row.requires_session ? " --set session_id=a" : "";
  return `sbclient send --${row.kind === "queue" ? "queue" : "topic"} ${quoted(path)} --body hello${session}`;
}
