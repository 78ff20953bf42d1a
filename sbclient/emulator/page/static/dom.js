/** Creates DOM elements. Text is never parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";
const shown = new WeakMap();
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate"]);

/** An element: `h("button", {class: "quiet", onclick: f}, "Send")`. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set an attribute, a listener or a property of an element; null and false remove an attribute. */
export function set(element, name, value) {
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (PROPERTIES.has(name)) element[name] = value;
  else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value))
    element.setAttribute(name, value === true ? "" : String(value));
}

/** Change a text only if it differs, so that a selection in it stays. */
export function write(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/**
 * Show items as children of an element. Each item keeps its child.
 *
 * @param make - called with a new item; returns its element.
 * @param update - called with the element and the item, every time.
 */
export function keyed(parent, items, keyOf, make, update = () => {}) {
  const had = shown.get(parent) ?? new Map();
  const has = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const element = had.get(key) ?? make(item);
    update(element, item);
    has.set(key, element);
    if (element === at) at = at.nextSibling;
    else parent.insertBefore(element, at);
  }
  for (const [key, element] of had) if (!has.has(key)) element.remove();
  shown.set(parent, has);
}

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A name in one line, with invisible and direction-changing characters made visible. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (letter) => {
    const code = letter.codePointAt(0);
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
