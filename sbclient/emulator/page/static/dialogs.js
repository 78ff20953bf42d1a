/** Dialogs of the page: confirmation before anything is deleted, the key, the help; and notices. */

import { h, write } from "./dom.js";

const NOTICE_MS = 6000;

/** Show a notice of success. */
export function notify(text) {
  show(document.getElementById("notices"), text, "notice", NOTICE_MS);
}

/** Show an error. */
export function complain(error) {
  show(document.getElementById("alerts"), error.message, "notice notice-bad", 3 * NOTICE_MS);
}

function show(place, text, className, durationMs) {
  const notice = h(
    "div",
    { class: className },
    h("p", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => notice.remove() }, "✕"),
  );
  place.append(notice);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => notice.remove(), durationMs);
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

/** Open a dialog; returns the element. Escape closes it, and the focus returns. */
export function openWindow(title, className, ...content) {
  const id = `window-${document.querySelectorAll("dialog").length}`;
  const close = () => element.close();
  const element = h(
    "dialog",
    { class: `window ${className}`, "aria-labelledby": id },
    h(
      "div",
      { class: "window-head" },
      h("h2", { id }, title),
      h("button", { type: "button", class: "quiet round", "aria-label": "Close", onclick: close }, "✕"),
    ),
    ...content,
  );
  const before = document.activeElement;
  element.addEventListener("close", () => {
    element.remove();
    before?.focus?.();
  });
  element.addEventListener("click", (event) => event.target === element && element.close());
  document.body.append(element);
  element.showModal();
  return element;
}

/** Open a dialog with a form, which closes when the async function `work` succeeds, and else shows its error. */
export function openForm(title, className, parts, action, work) {
  const refusal = h("p", { class: "refusal", role: "alert", hidden: true });
  const button = h("button", { class: "primary" }, action);
  const submit = async (event) => {
    event.preventDefault();
    refusal.hidden = button.disabled = true;
    try {
      await work();
      element.close();
    } catch (error) {
      refusal.hidden = false;
      write(refusal, error.message);
      refusal.scrollIntoView({ block: "nearest" });
    } finally {
      button.disabled = false;
    }
  };
  const cancel = h("button", { type: "button", onclick: () => element.close() }, "Cancel");
  const buttons = h("div", { class: "buttons" }, cancel, button);
  const element = openWindow(title, className, h("form", { onsubmit: submit }, ...parts, refusal, buttons));
}

/** An input of a form with its label. */
export function field(label, input) {
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

/**
 * Confirm an action that cannot be undone; resolves to true if the user confirms.
 *
 * @param action - the text of the button: "Purge 12 messages".
 */
export function confirmed(question, explanation, action) {
  return new Promise((resolve) => {
    let answer = false;
    const cancel = h("button", { type: "button", onclick: () => element.close() }, "Cancel");
    const go = () => {
      answer = true;
      element.close();
    };
    const element = openWindow(
      question,
      "question",
      h("p", {}, explanation),
      h("div", { class: "buttons" }, cancel, h("button", { type: "button", class: "danger", onclick: go }, action)),
    );
    cancel.focus();
    element.addEventListener("close", () => resolve(answer));
  });
}

/**
 * Request the key of the namespaces; resolves to `{name, key}`.
 *
 * @param again - why the key is requested again; the user may then close the dialog, which resolves to null.
 */
export function askForKey(reason, again = null) {
  return new Promise((resolve) => {
    const name = h("input", {
      id: "key-name",
      value: "RootManageSharedAccessKey",
      autocomplete: "off",
      spellcheck: "false",
    });
    const key = h("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true });
    const submit = (event) => {
      event.preventDefault();
      if (!key.value) return;
      resolve({ name: name.value, key: key.value });
      element.close("given");
    };
    const element = openWindow(
      "This emulator has its own key",
      "key",
      h(
        "form",
        { onsubmit: submit },
        h(
          "p",
          {},
          again ??
            "The page needs the Manage right. The key does not leave this tab: it signs a token and is not stored.",
        ),
        reason ? h("p", { class: "refusal", role: "alert" }, reason) : null,
        h("label", { for: "key-name" }, "Name of the key"),
        name,
        h("label", { for: "key" }, "Key"),
        key,
        h("div", { class: "buttons" }, h("button", { class: "primary" }, "Open")),
      ),
    );
    if (again) element.addEventListener("close", () => resolve(null));
    else {
      element.addEventListener("cancel", (event) => event.preventDefault());
      element.querySelector(".window-head button").remove();
    }
    key.focus();
  });
}

/** The help on shortcuts; see `keys.js`. */
export function openHelp(shortcuts, isOn, turn) {
  const box = h("input", { type: "checkbox", id: "shortcuts-on", checked: isOn, onchange: () => turn(box.checked) });
  openWindow(
    "Shortcuts and help",
    "help",
    h(
      "dl",
      { class: "shortcuts" },
      ...shortcuts.flatMap(({ keys, what }) => [
        h("dt", {}, ...keys.map((key) => h("kbd", {}, key))),
        h("dd", {}, what),
      ]),
    ),
    h("p", { class: "check" }, box, h("label", { for: "shortcuts-on" }, "Single letters are shortcuts")),
    h(
      "p",
      { class: "muted" },
      "Tab moves through all controls; the arrow keys move through fragments and tabs. All data is also JSON ",
      "under /$control, see docs/page.md.",
    ),
  );
}
