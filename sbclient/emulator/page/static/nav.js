/** The list of namespaces and their entities, with the number of messages in each, and a filter. */

import { html, visible } from "./dom.js";
import { count, short } from "./format.js";
import { addressOf, nameOf } from "./names.js";
import { stateOf } from "./pictures.js";
import { Component } from "./preact.js";
import { state } from "./store.js";

const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

export function focusFilter() {
  document.getElementById("filter").focus();
}

/** The address of the entity after or before the open one; null = there is none. */
export function adjacent(step) {
  const links = [...document.querySelectorAll("nav a.entity")];
  const at = links.findIndex((link) => link.getAttribute("aria-current") === "page");
  return links[at < 0 ? 0 : at + step]?.getAttribute("href") ?? null;
}

/** The list; `namespace` and `entity` are those of the open view, or null. */
export class EntityList extends Component {
  render({ namespace, entity }, { filter = "" }) {
    const change = ({ target }) => this.setState({ filter: target.value.trim().toLowerCase() });
    return html`
      <div class="nav">
        <div class="filter">
          <input
            type="search" id="filter" placeholder="Filter entities" aria-label="Filter entities" autocomplete="off"
            spellcheck=${false} oninput=${change}
          />
          <kbd aria-hidden="true">/</kbd>
        </div>
        <div class="namespaces">
          ${[...state.namespaces].map(([name, known]) => {
            const current = name === namespace ? entity : null;
            return html`<${Group} key=${name} name=${name} ...${known} filter=${filter} current=${current} />`;
          })}
        </div>
      </div>`;
  }
}

/** The entities of one namespace. */
class Group extends Component {
  /** The paths that match the filter in their order, sorted only when there are others. */
  shown(rows, filter) {
    const paths = [...rows.keys()].filter((path) => path.toLowerCase().includes(filter));
    const key = paths.join("\n");
    if (key !== this.key) Object.assign(this, { key, paths: paths.sort(order.compare) });
    return this.paths;
  }

  render({ name, facts, rows, filter, current }) {
    const { word, kind } = stateOf(facts.state);
    const paths = this.shown(rows, filter);
    return html`
      <section aria-label="Entities of ${name}">
        <h2>
          <span class="name">${visible(name)}</span>
          <span class="state" data-kind=${kind} hidden=${facts.state === "up"}>${word}</span>
          <span class="muted">${facts.port && `:${facts.port}`}</span>
        </h2>
        <ul>
          ${paths.map(
            (path) => html`
              <${Item} key=${path} namespace=${name} row=${rows.get(path)} isCurrent=${path === current} />`,
          )}
        </ul>
        <p class="empty" hidden=${paths.length > 0}>
          ${rows.size ? `None of ${count(rows.size)} match.` : "No entities yet."}
        </p>
      </section>`;
  }
}

class Item extends Component {
  shouldComponentUpdate({ row, isCurrent }) {
    return row !== this.props.row || isCurrent !== this.props.isCurrent;
  }

  render({ namespace, row, isCurrent }) {
    const { path, kind, status, dead } = row;
    const { word, kind: look } = stateOf(row.state);
    const isBelow = kind === "subscription";
    const messages = row.active + row.scheduled + row.deferred;
    const heard =
      `, ${kind}, ${word}, ${count(row.active)} active, ${count(row.scheduled)} scheduled, ` +
      `${count(row.deferred)} deferred, ${count(dead)} dead-lettered`;
    return html`
      <li>
        <a
          class="entity kind-${kind} ${isBelow ? "below" : ""}" href=${addressOf(namespace, path)}
          title=${visible(path)} aria-current=${isCurrent ? "page" : null}
        >
          <span class="dot" data-kind=${status === "Active" ? look : "calm"}></span>
          <span class="path">${isBelow ? visible(path.split("/").at(-1)) : nameOf(path)}</span>
          <span class="hearable">${heard}</span>
          <span class="dead" aria-hidden="true" title=${dead ? `${count(dead)} dead-lettered` : ""}>
            ${dead > 0 && short(dead)}
          </span>
          <span class="waiting ${messages ? "" : "none"}" aria-hidden="true">
            ${kind === "topic" && !messages ? "" : short(messages)}
          </span>
        </a>
      </li>`;
  }
}
