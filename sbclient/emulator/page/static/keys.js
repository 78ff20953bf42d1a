/** Shortcuts of one letter, inactive in fields and while a dialog is open. They can be turned off. */

import { openHelp } from "./dialogs.js";

const SLOT = "sbclient shortcuts";

const shortcuts = [];
let isOn = localStorage.getItem(SLOT) !== "off";

/** Assign an action to a key. */
export function onKey(key, what, action) {
  shortcuts.push({ key, what, action });
}

/** The shortcuts and their descriptions. */
export function help() {
  openHelp(shortcuts, isOn, (next) => {
    isOn = next;
    localStorage.setItem(SLOT, next ? "on" : "off");
  });
}

document.addEventListener("keydown", (event) => {
  if (!isOn || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const shortcut = shortcuts.find((each) => each.key === event.key);
  if (shortcut && shortcut.action() !== false) event.preventDefault();
});
