/**
 * The right to look and to change things: a token of the Manage right, signed here like by any other client.
 *
 * It is signed with the key that every emulator has unless it is given another, which is public; if that is refused,
 * with the key that the user is asked for. A key is kept nowhere; its token, which ends after half a day, for this tab.
 */

const KEY_NAME = "RootManageSharedAccessKey";
const PUBLIC_KEY = "SAS_KEY_VALUE";
const LIFE_S = 12 * 3600;
const SLOT = "sbclient token";

const tries = [() => sessionStorage.getItem(SLOT), () => (canSign() ? signed(KEY_NAME, PUBLIC_KEY) : null)];
let token = null;
let askForKey = null;
let renewing = null;
let isFirst = true;
let wasAsked = false;

/** Set who asks the user: called with what was wrong with the last key, resolves to `{name, key}`. */
export function setKeyDialog(ask) {
  askForKey = ask;
}

/** What goes with each request; an emulator that wants no token (`--auth none`) looks at none. */
export async function headers() {
  if (isFirst) {
    isFirst = false;
    renewing ??= next().finally(done);
  }
  await renewing;
  return token === null ? {} : { Authorization: token };
}

/** The token was refused: get a better one. Everybody who waits for it gets the same. */
export function renew(reason) {
  renewing ??= better(reason).finally(done);
  return renewing;
}

function done() {
  renewing = null;
}

/** Take the next token that can be had without asking; false if there is none. */
async function next() {
  while (tries.length) {
    const found = await tries.shift()();
    if (found !== null && found !== token) {
      token = found;
      return true;
    }
  }
  return false;
}

async function better(reason) {
  if (await next()) return;
  const given = await askForKey(wasAsked ? reason : null);
  wasAsked = true;
  token = await signed(given.name, given.key);
  sessionStorage.setItem(SLOT, token);
}

function canSign() {
  return Boolean(globalThis.crypto?.subtle);
}

async function signed(name, key) {
  if (!canSign()) {
    throw new Error(
      "This address is not one that browsers trust with signatures: open the page as http://localhost, or with https.",
    );
  }
  const text = new TextEncoder();
  const resource = encodeURIComponent(`sb://${location.host}/`);
  const expiry = Math.floor(Date.now() / 1000) + LIFE_S;
  const secret = await crypto.subtle.importKey("raw", text.encode(key), { name: "HMAC", hash: "SHA-256" }, false, [
    "sign",
  ]);
  const proof = new Uint8Array(await crypto.subtle.sign("HMAC", secret, text.encode(`${resource}\n${expiry}`)));
  const signature = encodeURIComponent(btoa(String.fromCharCode(...proof)));
  return `SharedAccessSignature sr=${resource}&sig=${signature}&se=${expiry}&skn=${encodeURIComponent(name)}`;
}
