/** Connection strings, and commands that work as they are printed. */

import { isPublicKey, signingKey } from "./access.js";
import { attempt, notify } from "./dialogs.js";
import { h, set, write } from "./dom.js";
import { state } from "./store.js";

const HIDDEN = "\u2022".repeat(8);
const VARIABLE = "SERVICEBUS_CONNECTION_STRING";

function connectionString(namespace, { name, key }) {
  const endpoint = `sb://${location.hostname}:${state.about.ports[namespace]}`;
  return `Endpoint=${endpoint};SharedAccessKeyName=${name};SharedAccessKey=${key};UseDevelopmentEmulator=true;`;
}

/** A button that copies what `text()` resolves to; null = nothing. Browsers copy only on localhost and by https. */
export function copyButton(name, text, said, word = "Copy") {
  const copy = async () => {
    const found = await text();
    if (found === null) return;
    await navigator.clipboard.writeText(found);
    notify(said);
  };
  if (!navigator.clipboard) return null;
  return h("button", { type: "button", class: "quiet", "aria-label": name, onclick: () => attempt(copy) }, word);
}

/** The connection string of a namespace, with its key only after a click; call `update()` after each change. */
export function connectionPart(namespace) {
  const text = h("code", {});
  let shown = null;
  const toggle = h("button", { type: "button", class: "quiet", onclick: () => attempt(flip) });
  const flip = async () => {
    shown = shown === null ? await signingKey() : null;
    update();
  };
  const whole = async () => {
    const key = await signingKey();
    return key && connectionString(namespace, key);
  };
  const copy = copyButton(`Copy the connection string of ${namespace}`, whole, "Copied the connection string.");
  const element = h("div", { class: "connection-string" }, text, toggle, copy);

  function update() {
    element.hidden = !(namespace in state.about.ports);
    write(text, connectionString(namespace, shown ?? { name: "RootManageSharedAccessKey", key: HIDDEN }));
    text.classList.toggle("shown", shown !== null);
    write(toggle, shown ? "Hide key" : "Show key");
    set(toggle, "aria-label", `${shown ? "Hide" : "Show"} key of ${namespace}`);
  }
  return { element, update };
}

/** A command for a shell; call `update(command)` to show it, null = none. A key of the user is not part of it. */
export function commandHint(namespace) {
  const text = h("pre", {});
  const note = h("p", { class: "note" });
  const copy = copyButton("Copy the commands", async () => text.textContent, "Copied the commands.");
  const element = h("div", { class: "hint" }, text, copy, note);
  return {
    element,
    update(command) {
      element.hidden = command === null || !(namespace in state.about.ports);
      if (element.hidden) return;
      const key = isPublicKey() ? { name: "RootManageSharedAccessKey", key: "SAS_KEY_VALUE" } : null;
      const lines = key ? [`export ${VARIABLE}=${quoted(connectionString(namespace, key))}`, command] : [command];
      write(text, lines.join("\n"));
      write(note, key ? "" : `Set ${VARIABLE} to the connection string of ${namespace} first; the overview has it.`);
    },
  };
}

/** A word for a shell. */
export function quoted(word) {
  return /^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
