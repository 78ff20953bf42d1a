/**
 * Views, written as markup. Values in a view are never parsed as markup.
 *
 * Preact and htm find what has changed in a view, so that no code here updates elements by hand. `preact.js` is
 * `dist/preact.mjs` of preact 11.2.0, without its last line, and `htm.js` is `dist/htm.module.js` of htm 3.1.1, both of
 * the npm registry. Their licences are in `../licenses/`.
 */

import htm from "./htm.js";
import { h } from "./preact.js";

/** A view: html`<button class="quiet" onclick=${send}>${name}</button>`. */
export const html = htm.bind(h);

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A name in one line, with invisible and direction-changing characters made visible. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (letter) => {
    const code = letter.codePointAt(0);
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
