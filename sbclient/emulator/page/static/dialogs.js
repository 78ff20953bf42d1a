/** Dialogs of the page: confirmation before anything is deleted, the key, the help; and notices. */

import { html } from "./dom.js";
import { Component, render } from "./preact.js";

const NOTICE_MS = 6000;
const notices = { notices: [], alerts: [] };

/** Show a notice of success. */
export function notify(text) {
  show("notices", { text, look: "notice" }, NOTICE_MS);
}

/** Show an error. */
export function complain(error) {
  show("alerts", { text: error.message, look: "notice notice-bad" }, 3 * NOTICE_MS);
}

function show(place, notice, durationMs) {
  const put = (shown) => {
    notices[place] = shown.slice(-4);
    render(notices[place].map(view), document.getElementById(place));
  };
  const drop = (each) => put(notices[place].filter((other) => other !== each));
  const view = (each) => html`
    <div class=${each.look}>
      <p>${each.text}</p>
      <button type="button" class="quiet" aria-label="Dismiss" onclick=${() => drop(each)}>✕</button>
    </div>`;
  put([...notices[place], notice]);
  setTimeout(() => drop(notice), durationMs);
}

/** Call an async function and show its error; resolves to its result, or undefined. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    complain(error);
    return undefined;
  }
}

/**
 * Open a dialog; returns the element. Escape closes it, and the focus returns.
 *
 * @param content - returns the view; called with a function that closes the dialog.
 */
export function openWindow(title, className, content, canClose = true) {
  const element = document.createElement("dialog");
  const id = `window-${document.querySelectorAll("dialog").length}`;
  const close = () => element.close();
  const cross = html`<button type="button" class="quiet round" aria-label="Close" onclick=${close}>✕</button>`;
  const before = document.activeElement;
  element.className = `window ${className}`;
  element.setAttribute("aria-labelledby", id);
  element.addEventListener("close", () => {
    render(null, element);
    element.remove();
    before?.focus?.();
  });
  element.addEventListener("cancel", (event) => canClose || event.preventDefault());
  element.addEventListener("click", (event) => canClose && event.target === element && close());
  document.body.append(element);
  render(html`<div class="window-head"><h2 id=${id}>${title}</h2>${canClose && cross}</div>${content(close)}`, element);
  element.showModal();
  return element;
}

/** The buttons at the end of a dialog. */
const buttons = (close, button, autofocus) => html`
  <div class="buttons">
    <button type="button" autofocus=${autofocus} onclick=${close}>Cancel</button>
    ${button}
  </div>`;

/** Open a dialog with a form, which closes when the async function `work(data)` succeeds, and else shows its error. */
export function openForm(title, className, fields, action, work) {
  openWindow(
    title,
    className,
    (close) => html`<${Form} fields=${fields} action=${action} work=${work} close=${close} />`,
  );
}

class Form extends Component {
  submit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    this.setState({ refusal: null, isBusy: true });
    try {
      await this.props.work(data);
      this.props.close();
    } catch (error) {
      this.setState({ refusal: error.message }, () => event.target.querySelector(".refusal").scrollIntoView(NEAREST));
    } finally {
      this.setState({ isBusy: false });
    }
  };

  render({ fields, action, close }, { refusal, isBusy }) {
    return html`
      <form onsubmit=${this.submit}>
        ${fields}
        <p class="refusal" role="alert" hidden=${!refusal}>${refusal}</p>
        ${buttons(close, html`<button class="primary" disabled=${isBusy}>${action}</button>`)}
      </form>`;
  }
}

const NEAREST = { block: "nearest" };

/** A field of a form with its label: one line of text unless `rest` has another `type`, or `rows`. */
export function Field({ id, label, rows, ...rest }) {
  const attributes = { id, autocomplete: "off", spellcheck: false, ...rest };
  const input = rows ? html`<textarea rows=${rows} ...${attributes} />` : html`<input ...${attributes} />`;
  return html`<div class="field"><label for=${id}>${label}</label>${input}</div>`;
}

/**
 * Confirm an action that cannot be undone; resolves to true if the user confirms.
 *
 * @param action - the text of the button: "Purge 12 messages".
 */
export function confirmed(question, explanation, action) {
  return new Promise((resolve) => {
    const content = (close) => {
      const go = () => {
        resolve(true);
        close();
      };
      const button = html`<button type="button" class="danger" onclick=${go}>${action}</button>`;
      return html`<p>${explanation}</p>${buttons(close, button, true)}`;
    };
    openWindow(question, "question", content).addEventListener("close", () => resolve(false));
  });
}

/**
 * Request the key of the namespaces; resolves to `{name, key}`.
 *
 * @param again - why the key is requested again; the user may then close the dialog, which resolves to null.
 */
export function askForKey(reason, again = null) {
  const why =
    again ?? "The page needs the Manage right. The key does not leave this tab: it signs a token and is not stored.";
  return new Promise((resolve) => {
    const content = (close) => {
      const submit = (event) => {
        event.preventDefault();
        const { name, key } = Object.fromEntries(new FormData(event.target));
        if (!key) return;
        resolve({ name, key });
        close();
      };
      return html`
        <form onsubmit=${submit}>
          <p>${why}</p>
          ${reason && html`<p class="refusal" role="alert">${reason}</p>`}
          <label for="key-name">Name of the key</label>
          <input
            id="key-name" name="name" defaultValue="RootManageSharedAccessKey" autocomplete="off" spellcheck=${false}
          />
          <label for="key">Key</label>
          <input id="key" name="key" type="password" autocomplete="off" spellcheck=${false} required autofocus />
          <div class="buttons"><button class="primary">Open</button></div>
        </form>`;
    };
    const element = openWindow("This emulator has its own key", "key", content, again !== null);
    if (again) element.addEventListener("close", () => resolve(null));
  });
}

/** The help on shortcuts; see `keys.js`. */
export function openHelp(shortcuts, isOn, turn) {
  const content = () => html`
    <dl class="shortcuts">${shortcuts.map(({ key, what }) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <p class="check">
      <input
        type="checkbox" id="shortcuts-on" defaultChecked=${isOn} onchange=${({ target }) => turn(target.checked)}
      />
      <label for="shortcuts-on">Single letters are shortcuts</label>
    </p>
    <p class="muted">
      Tab moves through all controls; the arrow keys move through fragments and tabs. All data is also JSON under
      /$control, see docs/page.md.
    </p>`;
  openWindow("Shortcuts and help", "help", content);
}
