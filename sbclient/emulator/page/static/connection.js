/** Connection strings, and commands that work as they are printed. */

import { isPublicKey, signingKey } from "./access.js";
import { attempt, notify } from "./dialogs.js";
import { html } from "./dom.js";
import { Component } from "./preact.js";
import { state } from "./store.js";

const HIDDEN = "\u2022".repeat(8);
const VARIABLE = "SERVICEBUS_CONNECTION_STRING";

function connectionString(namespace, { name, key }) {
  const endpoint = `sb://${location.hostname}:${state.about.ports[namespace]}`;
  return `Endpoint=${endpoint};SharedAccessKeyName=${name};SharedAccessKey=${key};UseDevelopmentEmulator=true;`;
}

/** A button that copies what `text(button)` resolves to, unless null. Browsers copy only on localhost and by https. */
export function CopyButton({ name, text, said, word = "Copy", look = "" }) {
  const copy = async ({ target }) => {
    const found = await text(target);
    if (found === null) return;
    await navigator.clipboard.writeText(found);
    notify(said);
  };
  const click = (event) => attempt(() => copy(event));
  return (
    navigator.clipboard &&
    html`<button type="button" class="quiet ${look}" aria-label=${name} onclick=${click}>${word}</button>`
  );
}

/** The connection string of a namespace, with its key only after a click. */
export class ConnectionString extends Component {
  flip = () => attempt(async () => this.setState({ shown: this.state.shown ? null : await signingKey() }));

  render({ namespace }, { shown }) {
    const whole = async () => {
      const key = await signingKey();
      return key && connectionString(namespace, key);
    };
    const text = connectionString(namespace, shown ?? { name: "RootManageSharedAccessKey", key: HIDDEN });
    const [word, label] = shown ? ["Hide key", `Hide key of ${namespace}`] : ["Show key", `Show key of ${namespace}`];
    return html`
      <div class="connection-string" hidden=${!(namespace in state.about.ports)}>
        <code class=${shown ? "shown" : ""}>${text}</code>
        <button type="button" class="quiet" aria-label=${label} onclick=${this.flip}>${word}</button>
        <${CopyButton}
          name="Copy the connection string of ${namespace}" text=${whole} said="Copied the connection string."
        />
      </div>`;
  }
}

/** A command for a shell. A key of the user is not part of it. */
export function CommandHint({ namespace, command }) {
  const key = isPublicKey() ? { name: "RootManageSharedAccessKey", key: "SAS_KEY_VALUE" } : null;
  const lines = key ? [`export ${VARIABLE}=${quoted(connectionString(namespace, key))}`, command] : [command];
  const text = lines.join("\n");
  return html`
    <div class="hint" hidden=${!(namespace in state.about.ports)}>
      <pre>${text}</pre>
      <${CopyButton} name="Copy the commands" text=${async () => text} said="Copied the commands." />
      <p class="note">
        ${key ? "" : `Set ${VARIABLE} to the connection string of ${namespace} first; the overview has it.`}
      </p>
    </div>`;
}

/** A word for a shell. */
export function quoted(word) {
  return /^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
