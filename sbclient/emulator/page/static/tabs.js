/** Tabs: one panel at a time; the arrow keys switch between them. */

import { html } from "./dom.js";

/**
 * The bar of tabs.
 *
 * @param tabs - `[{id, name, badge, isShown}]`.
 * @param open - the id of the open one.
 * @param choose - called with the id of a tab that the user opens.
 */
export function TabBar({ tabs, open, choose }) {
  const shown = tabs.filter((tab) => tab.isShown);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = shown.findIndex(({ id }) => document.activeElement.id === `tab-${id}`);
    if (!step || at < 0) return;
    event.preventDefault();
    const { id } = shown[(at + step + shown.length) % shown.length];
    document.getElementById(`tab-${id}`).focus();
    choose(id);
  };
  return html`
    <div role="tablist" class="tabs" aria-label="Parts of this entity" onkeydown=${move}>
      ${shown.map(
        ({ id, name, badge }) => html`
          <button
            key=${id} type="button" role="tab" id="tab-${id}" aria-controls="panel-${id}" aria-selected=${id === open}
            tabindex=${id === open ? "0" : "-1"} onclick=${() => id !== open && choose(id)}
          >
            ${name}<span class="badge" hidden=${!badge}>${badge}</span>
          </button>`,
      )}
    </div>`;
}

/** The panel of a tab, hidden unless its tab is open. */
export function Panel({ id, open, children }) {
  return html`
    <div role="tabpanel" id="panel-${id}" aria-labelledby="tab-${id}" hidden=${id !== open}>${children}</div>`;
}
