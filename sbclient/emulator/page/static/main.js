/** Assembles the page: the open view, the state of the connection, and the shortcuts. */

import { setKeyDialog } from "./access.js";
import { askForKey } from "./dialogs.js";
import { h, set, write } from "./dom.js";
import { entityView } from "./entity.js";
import { now, refreshTimes, timeOfDay } from "./format.js";
import { help, onKey } from "./keys.js";
import { addressOf, isSequenceNumber } from "./names.js";
import { entityList } from "./nav.js";
import { overview } from "./overview.js";
import { patterns } from "./pictures.js";
import { listen, lookAt, paced, state } from "./store.js";
import { storyLine } from "./story.js";

const DRAW_MS = 200;
const TICK_MS = 1000;

const place = (id) => document.getElementById(id);
const list = entityList();
const story = storyLine(place("story"));
let view = null;
let shownFor = null;

/** The parts of the address: `#/contoso/orders/dead/42`, each encoded by itself; the last is a sequence number. */
function route() {
  const [namespace = null, entity = null, tab = null, number = null] = location.hash
    .slice(2)
    .split("/")
    .filter(Boolean)
    .map(decoded);
  return { namespace, entity, tab, number: isSequenceNumber(number) ? number : null };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function openRoute() {
  const asked = route();
  const key = `${asked.namespace}\n${asked.entity}`;
  if (key !== shownFor) {
    const isFirst = shownFor === null;
    shownFor = key;
    view?.close?.();
    view = asked.entity === null ? overview() : entityView(asked.namespace, asked.entity, { show, leave });
    place("main").replaceChildren(view.element);
    openMenu(false);
    document.title = `${view.title} – sbclient emulator`;
    list.mark(asked.entity === null ? null : asked.namespace, asked.entity);
    lookAt(asked.namespace, asked.entity);
    scrollTo(0, 0);
    if (!isFirst && document.activeElement === document.body) place("main").focus();
  }
  view.open?.(asked.tab, asked.number);
  view.update();
  view.reveal?.(asked.namespace);
}

/** Go to an address that has a way back: the back button, or `leave`. */
function show(address) {
  if (address === location.hash) return;
  history.pushState({ hasBack: true }, "", address);
  openRoute();
}

/** Leave an address for the one before it, or for another one if the page was opened there. */
function leave(other) {
  if (history.state?.hasBack) history.back();
  else {
    history.replaceState(null, "", other);
    openRoute();
  }
}

/** On a narrow screen, a button shows the list of entities. */
function openMenu(isOpen) {
  set(place("menu"), "aria-expanded", String(isOpen));
  document.body.classList.toggle("menu-open", isOpen);
}

function showLink() {
  const connection = place("connection");
  connection.dataset.link = state.link;
  write(connection, { live: "live", lost: "connection lost", connecting: "connecting" }[state.link]);
  set(connection, "title", state.link === "live" ? `Time at the emulator: ${timeOfDay(now())}` : state.reason);
  document.body.classList.toggle("stale", state.link === "lost");
  const banner = document.querySelector(".banner");
  if (state.link !== "lost") banner?.remove();
  else if (!banner) place("main").before(lostBanner());
}

function lostBanner() {
  const outside = state.about.http_port;
  const isOutside = location.port === String(outside);
  return h(
    "div",
    { class: "banner", role: "alert" },
    `${state.reason ?? ""} The data is from before; the page tries again by itself.`,
    outside && !isOutside
      ? h("a", { href: `http://${location.hostname}:${outside}/` }, ` Faults do not affect port ${outside}.`)
      : null,
  );
}

const draw = paced(() => {
  showLink();
  story.update();
  view?.update();
}, DRAW_MS);

listen((change) => {
  list.update(change);
  draw();
});
setInterval(() => {
  refreshTimes();
  draw();
}, TICK_MS);

setKeyDialog(askForKey);
place("nav").append(list.element);
document.body.append(patterns());
place("help").addEventListener("click", help);
place("menu").addEventListener("click", () => openMenu(place("menu").getAttribute("aria-expanded") !== "true"));
addEventListener("hashchange", openRoute);
addEventListener("visibilitychange", draw);

const goTo = (address) => {
  if (address === null) return false;
  location.hash = address;
  return true;
};
const openTab = (tab) => {
  const { namespace, entity } = route();
  return entity !== null && goTo(addressOf(namespace, entity, tab));
};
onKey("?", "this help", help);
onKey("/", "filter the entities", list.focusFilter);
onKey("o", "the overview", () => goTo("#/"));
onKey("j", "the next entity", () => goTo(list.adjacent(1)));
onKey("k", "the previous entity", () => goTo(list.adjacent(-1)));
onKey("m", "its messages", () => openTab("messages"));
onKey("d", "its dead letters", () => openTab("dead"));
onKey("f", "its faults", () => openTab("faults"));
onKey("s", "send a message to it", () => view?.send?.());
onKey("r", "reload its messages", () => view?.reload?.());
openRoute();
