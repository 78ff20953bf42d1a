/** Tabs: one panel at a time; the arrow keys switch between them. */

import { h, set, write } from "./dom.js";

/**
 * @param tabs - `[{id, name, panel}]`, the panels being elements.
 * @param chosen - called with the id of a tab when it is opened.
 */
export function tabBar(tabs, chosen) {
  const buttons = tabs.map(({ id, name }) =>
    h(
      "button",
      { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, onclick: () => open(id, true) },
      name,
      h("span", { class: "badge", hidden: true }),
    ),
  );
  const bar = h("div", { role: "tablist", class: "tabs", "aria-label": "Parts of this entity" }, ...buttons);
  for (const { id, panel } of tabs) {
    for (const [name, value] of [
      ["role", "tabpanel"],
      ["id", `panel-${id}`],
      ["aria-labelledby", `tab-${id}`],
    ])
      set(panel, name, value);
  }
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const shown = buttons.filter((button) => !button.hidden);
    const at = shown.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = shown[(at + step + shown.length) % shown.length];
    next.focus();
    next.click();
  });
  let current = null;
  function open(id, isByUser = false) {
    if (current === id) return;
    current = id;
    tabs.forEach((tab, at) => {
      const isOpen = tab.id === id;
      set(buttons[at], "aria-selected", String(isOpen));
      set(buttons[at], "tabindex", isOpen ? "0" : "-1");
      tab.panel.hidden = !isOpen;
    });
    chosen(id, isByUser);
  }
  const button = (id) => buttons[tabs.findIndex((tab) => tab.id === id)];
  return {
    element: bar,
    open,
    badge(id, text) {
      write(button(id).lastChild, text);
      button(id).lastChild.hidden = !text;
    },
    show(id, isShown) {
      button(id).hidden = !isShown;
    },
  };
}
