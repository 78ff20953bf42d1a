/**
 * Authorization of the page: a token with the Manage right, signed here as in any other client.
 *
 * The page signs with the public default key of every emulator. If the emulator rejects it, the page requests a key
 * from the user. The key is not stored. The token, which expires after half a day, is stored for this tab.
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

/** Set the function that requests a key from the user: called with the last error, resolves to `{name, key}`. */
export function setKeyDialog(ask) {
  askForKey = ask;
}

/** The headers of each request; an emulator with `--auth none` ignores the token. */
export async function headers() {
  if (isFirst) {
    isFirst = false;
    renewing ??= next().finally(done);
  }
  await renewing;
  return token === null ? {} : { Authorization: token };
}

/** Replace a rejected token. All requests that wait for one get the same. */
export function renew(reason) {
  renewing ??= better(reason).finally(done);
  return renewing;
}

function done() {
  renewing = null;
}

/** Take the next token that needs no user; false if there is none. */
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
      "Browsers do not allow signatures at this address: open the page as http://localhost, or with https.",
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
