/** Views of a message body: formatted JSON, plain text, or hexadecimal. */

import { html } from "./dom.js";

const COLOURED_LENGTH = 60_000;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|true|false|null)|([{}[\],])|\s+|./gsu;

/** The ways to show a body, best first: `[{name, view}]`. */
export function bodyViews(body) {
  if (body.base64 !== undefined) {
    return [{ name: "Hex", view: hex(Uint8Array.from(atob(body.base64), (letter) => letter.charCodeAt(0))) }];
  }
  const raw = { name: "Raw", view: html`<pre class="body">${body.text}</pre>` };
  const views = isJson(body) ? [{ name: "JSON", view: pretty(body.text) }, raw] : [raw];
  return [...views, { name: "Hex", view: hex(new TextEncoder().encode(body.text)) }];
}

function isJson({ text, is_cut: isCut }) {
  if (isCut || !/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Format JSON without parsing it, so that numbers of any length are unchanged. */
export function pretty(text) {
  const isColoured = text.length <= COLOURED_LENGTH;
  const out = [];
  let line = "";
  let depth = 0;
  const put = (said, kind) => {
    if (!isColoured || !kind) {
      line += said;
      return;
    }
    if (line) out.push(line);
    line = "";
    out.push(html`<span class="json-${kind}">${said}</span>`);
  };
  const tokens = [...text.matchAll(TOKEN)].filter((token) => token[0].trim());
  tokens.forEach((token, at) => {
    const [, string, colon, plain, mark] = token;
    if (string !== undefined) {
      put(string, colon === undefined ? "string" : "key");
      if (colon !== undefined) put(": ");
    } else if (plain !== undefined) put(plain, "plain");
    else if (mark === "{" || mark === "[") {
      const isEmpty = "}]".includes(tokens[at + 1]?.[0]);
      depth += 1;
      put(isEmpty ? mark : `${mark}\n${"  ".repeat(depth)}`);
    } else if (mark === "}" || mark === "]") {
      const wasEmpty = "{[".includes(tokens[at - 1]?.[0]);
      depth -= 1;
      put(wasEmpty ? mark : `\n${"  ".repeat(depth)}${mark}`);
    } else put(mark === "," ? `,\n${"  ".repeat(depth)}` : token[0]);
  });
  if (line) out.push(line);
  return html`<pre class="body">${out}</pre>`;
}

function hex(bytes) {
  const perLine = innerWidth < 600 ? 8 : 16;
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 65_536); at += perLine) {
    const some = [...bytes.subarray(at, at + perLine)];
    const codes = some.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = some.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(perLine * 3)} ${letters}`);
  }
  return html`<pre class="body hex">${lines.join("\n") || "(empty)"}</pre>`;
}
