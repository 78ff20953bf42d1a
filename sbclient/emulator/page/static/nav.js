/** The list of namespaces and their entities, with the number of messages in each, and a filter. */

import { h, keyed, set, visible, write } from "./dom.js";
import { count, short } from "./format.js";
import { addressOf, nameOf } from "./names.js";
import { stateOf } from "./pictures.js";
import { state } from "./store.js";

const NONE = new Set();
const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** The list; call `update(change)` after each change, and `mark(namespace, path)` for the open entity. */
export function entityList() {
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter entities",
    "aria-label": "Filter entities",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => update({ paths: null }),
  });
  const list = h("div", { class: "namespaces" });
  const element = h(
    "div",
    { class: "nav" },
    h("div", { class: "filter" }, filter, h("kbd", { "aria-hidden": "true" }, "/")),
    list,
  );
  const groups = new Map();
  let current = null;

  function update({ paths }) {
    const wanted = filter.value.trim().toLowerCase();
    keyed(
      list,
      [...state.namespaces.entries()],
      ([name]) => name,
      ([name]) => {
        const made = group(name);
        groups.set(name, made);
        return made.element;
      },
      (_, [name, each]) => groups.get(name).update(each, paths && (paths.get(name) ?? NONE), wanted, current),
    );
  }
  return {
    element,
    update,
    focusFilter: () => filter.focus(),
    mark(namespace, path) {
      current = namespace === null ? null : `${namespace}/${path}`;
      update({ paths: null });
    },
    /** The address of the entity after or before the open one; null = there is none. */
    adjacent(step) {
      const links = [...list.querySelectorAll("a.entity")];
      const at = links.findIndex((link) => link.getAttribute("aria-current") === "page");
      return links[at < 0 ? 0 : at + step]?.getAttribute("href") ?? null;
    },
  };
}

function group(name) {
  const badge = h("span", { class: "state" });
  const port = h("span", { class: "muted" });
  const list = h("ul", {});
  const empty = h("p", { class: "empty" });
  const element = h(
    "section",
    { "aria-label": `Entities of ${name}` },
    h("h2", {}, h("span", { class: "name" }, visible(name)), badge, port),
    list,
    empty,
  );
  const items = new Map();
  let drawnFor = null;
  return {
    element,
    update({ facts, rows }, changed, filter, current) {
      const { word, kind } = stateOf(facts.state);
      badge.dataset.kind = kind;
      badge.hidden = facts.state === "up";
      write(badge, word);
      write(port, facts.port ? `:${facts.port}` : "");
      const wanted = `${filter}\n${current}`;
      const isMeant = (path) => path.toLowerCase().includes(filter);
      const moved = changed && [...changed].filter(isMeant);
      if (drawnFor === wanted && moved?.every((path) => items.has(path) && rows.has(path))) {
        for (const path of moved) show(items.get(path), name, rows.get(path), current);
        return;
      }
      drawnFor = wanted;
      items.clear();
      const shown = [...rows.values()].filter((row) => isMeant(row.path));
      shown.sort((a, b) => order.compare(a.path, b.path));
      keyed(
        list,
        shown,
        (row) => row.path,
        (row) => item(name, row),
        (each, row) => {
          items.set(row.path, each);
          show(each, name, row, current);
        },
      );
      empty.hidden = shown.length > 0;
      write(empty, rows.size ? `None of ${count(rows.size)} match.` : "No entities yet.");
    },
  };
}

function item(namespace, row) {
  const parts = row.path.split("/");
  const isBelow = row.kind === "subscription";
  return h(
    "li",
    {},
    h(
      "a",
      {
        class: `entity kind-${row.kind}${isBelow ? " below" : ""}`,
        href: addressOf(namespace, row.path),
        title: visible(row.path),
      },
      h("span", { class: "dot" }),
      h("span", { class: "path" }, isBelow ? visible(parts.at(-1)) : nameOf(row.path)),
      h("span", { class: "hearable" }),
      h("span", { class: "dead", "aria-hidden": "true" }),
      h("span", { class: "waiting", "aria-hidden": "true" }),
    ),
  );
}

function show(element, namespace, row, current) {
  const link = element.firstChild;
  const [dot, , heard, dead, waiting] = link.children;
  const { word, kind } = stateOf(row.state);
  dot.dataset.kind = row.status === "Active" ? kind : "calm";
  set(link, "aria-current", current === `${namespace}/${row.path}` ? "page" : null);
  const messages = row.active + row.scheduled + row.deferred;
  write(dead, row.dead ? short(row.dead) : "");
  dead.title = row.dead ? `${count(row.dead)} dead-lettered` : "";
  write(waiting, row.kind === "topic" && !messages ? "" : short(messages));
  waiting.classList.toggle("none", !messages);
  write(
    heard,
    `, ${row.kind}, ${word}, ${count(row.active)} active, ${count(row.scheduled)} scheduled, ` +
      `${count(row.deferred)} deferred, ${count(row.dead)} dead-lettered`,
  );
}
