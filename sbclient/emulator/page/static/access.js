/**
 * Authorization of the page: a token with the Manage right, signed here as in any other client.
 *
 * The page signs with the public default key of every emulator. If the emulator rejects it, the page requests a key
 * from the user. The key stays in memory until the page is reloaded, for connection strings. The token, which expires
 * after half a day, is stored for this tab.
 */

const KEY_NAME = "RootManageSharedAccessKey";
const PUBLIC = { name: KEY_NAME, key: "SAS_KEY_VALUE" };
const LIFE_S = 12 * 3600;
const SLOT = "sbclient token";

/** The tokens that need no user, each with its key; that of a stored token is not known. */
const tries = [
  { key: null, find: () => sessionStorage.getItem(SLOT) },
  { key: PUBLIC, find: () => (canSign() ? signed(PUBLIC) : null) },
];
let token = null;
let signer = null;
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
    const { key, find } = tries.shift();
    const found = await find();
    signer = key;
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
  token = await signed(given);
  signer = given;
  sessionStorage.setItem(SLOT, token);
}

function canSign() {
  return Boolean(globalThis.crypto?.subtle);
}

/** Whether the page uses the public default key, which is no secret. */
export function isPublicKey() {
  return signer === PUBLIC;
}

/** The key that signed the token, `{name, key}`; after a reload the user types it again. Null if the user does not. */
export async function signingKey() {
  for (let reason = null; signer === null; reason = "That key did not sign the token of this page.") {
    const given = await askForKey(reason, "The page does not store the key: type it again.");
    if (given === null) return null;
    const [resource, expiry] = ["sr", "se"].map((name) => new RegExp(`[ &]${name}=([^&]*)`).exec(token)[1]);
    if ((await signed(given, resource, expiry)) === token) signer = given;
  }
  return signer;
}

async function signed(
  { name, key },
  resource = encodeURIComponent(`sb://${location.host}/`),
  expiry = Math.floor(Date.now() / 1000) + LIFE_S,
) {
  if (!canSign()) {
    throw new Error(
      "Browsers do not allow signatures at this address: open the page as http://localhost, or with https.",
    );
  }
  const text = new TextEncoder();
  const secret = await crypto.subtle.importKey("raw", text.encode(key), { name: "HMAC", hash: "SHA-256" }, false, [
    "sign",
  ]);
  const proof = new Uint8Array(await crypto.subtle.sign("HMAC", secret, text.encode(`${resource}\n${expiry}`)));
  const signature = encodeURIComponent(btoa(String.fromCharCode(...proof)));
  return `SharedAccessSignature sr=${resource}&sig=${signature}&se=${expiry}&skn=${encodeURIComponent(name)}`;
}
