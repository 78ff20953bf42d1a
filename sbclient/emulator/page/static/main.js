/** Assembles the page: the open view, the state of the connection, and the shortcuts. */

import { setKeyDialog } from "./access.js";
import { askForKey } from "./dialogs.js";
import { html } from "./dom.js";
import { EntityView } from "./entity.js";
import { now, refreshTimes, timeOfDay } from "./format.js";
import { help, onKey } from "./keys.js";
import { addressOf, isSequenceNumber } from "./names.js";
import { adjacent, EntityList, focusFilter } from "./nav.js";
import { Overview } from "./overview.js";
import { render } from "./preact.js";
import { listen, lookAt, paced, state } from "./store.js";
import { Story } from "./story.js";

const DRAW_MS = 200;
const TICK_MS = 1000;
const LINKS = { live: "live", lost: "connection lost", connecting: "connecting" };

const place = (id) => document.getElementById(id);
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
  const { namespace, entity } = route();
  const key = `${namespace}\n${entity}`;
  const isOther = key !== shownFor;
  const isFirst = shownFor === null;
  shownFor = key;
  if (isOther) {
    lookAt(namespace, entity);
    openMenu(false);
    document.title = `${entity ?? "Overview"} – sbclient emulator`;
  }
  drawNow();
  if (isOther) {
    scrollTo(0, 0);
    if (!isFirst && document.activeElement === document.body) place("main").focus();
  }
  if (entity === null) place(`namespace-${namespace}`)?.scrollIntoView();
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

const go = { show, leave };
const ready = (component) => {
  view = component;
};

/** On a narrow screen, a button shows the list of entities. */
function openMenu(isOpen) {
  place("menu").setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("menu-open", isOpen);
}

/** Show the state and the open view. */
function drawNow() {
  const { namespace, entity, tab, number } = route();
  const { link, reason, story } = state;
  place("connection").dataset.link = link;
  place("connection").title = link === "live" ? `Time at the emulator: ${timeOfDay(now())}` : (reason ?? "");
  place("story").hidden = story === null;
  document.body.classList.toggle("stale", link === "lost");
  render(LINKS[link], place("connection"));
  render(story && html`<${Story} story=${story} />`, place("story"));
  render(link === "lost" && html`<${LostBanner} />`, place("lost"));
  render(html`<${EntityList} namespace=${namespace} entity=${entity} />`, place("nav"));
  const open =
    entity === null
      ? html`<${Overview} />`
      : html`
          <${EntityView}
            key=${shownFor} namespace=${namespace} path=${entity} tab=${tab} number=${number} go=${go} ready=${ready}
          />`;
  render(open, place("main"));
}

function LostBanner() {
  const outside = state.about.http_port;
  const isOutside = location.port === String(outside);
  return html`
    <div class="banner">
      ${`${state.reason ?? ""} The data is from before; the page tries again by itself.`}
      ${
        outside &&
        !isOutside &&
        html`<a href="http://${location.hostname}:${outside}/">${` Faults do not affect port ${outside}.`}</a>`
      }
    </div>`;
}

const draw = paced(drawNow, DRAW_MS);

listen(draw);
setInterval(() => {
  refreshTimes();
  draw();
}, TICK_MS);

setKeyDialog(askForKey);
place("main").replaceChildren();
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
onKey("/", "filter the entities", focusFilter);
onKey("o", "the overview", () => goTo("#/"));
onKey("j", "the next entity", () => goTo(adjacent(1)));
onKey("k", "the previous entity", () => goTo(adjacent(-1)));
onKey("m", "its messages", () => openTab("messages"));
onKey("d", "its dead letters", () => openTab("dead"));
onKey("f", "its faults", () => openTab("faults"));
onKey("s", "send a message to it", () => view?.send());
onKey("r", "reload its messages", () => view?.reload());
openRoute();
