/**
 * Sign-in at the identity provider: the authorization code grant with PKCE (RFC 7636). The service carries the requests
 * to the provider (ADR 92), so this page talks to no other site; the browser itself goes there and comes back.
 */
import { Problem, problemOf } from "./problem.js";
import { askOtherTabs, grant, keepGrant, me, tellOtherTabs, token } from "./session.js";

/** What a page remembers while the browser is at the provider. */
const PENDING = "gpu-platform-sign-in";
/** A token is renewed so long before it ends. */
const EARLY_MS = 30_000;
/** The page in a window of its own that signs somebody in, and closes. */
const WINDOW = "/sign-in?window";

/** @typedef {{token: string, refreshToken: string|null, endsAt: number}} Grant  endsAt: Unix milliseconds */

/** True if this browser lets the page compute a challenge: it does over https, and on this machine. */
export const canBegin = () => Boolean(globalThis.crypto?.subtle);

/** Go to the provider. Afterwards the page `to` is shown. Raises a Problem. */
export async function begin(to) {
  const [state, verifier] = [random(16), random(32)];
  const challenge = encoded(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  const { address } = await send("begin", { state, challenge });
  sessionStorage.setItem(PENDING, JSON.stringify({ state, verifier, to }));
  location.assign(address);
}

/** The same in a window of its own, so that this page stays as it is. False: the browser opens no window. */
export function beginInWindow() {
  return window.open(WINDOW, "gpu-platform-sign-in", "popup,width=520,height=680") !== null;
}

/** True in that window before it has been at the provider. */
export const isWindow = (search) => new URLSearchParams(search).has("window");

/** True if the provider has sent the browser back to this address. */
export function hasAnswer(search) {
  const params = new URLSearchParams(search);
  return params.has("state") && (params.has("code") || params.has("error"));
}

/**
 * Use the provider's answer. Returns the page to show: null if this is the window, which then is closed. Raises a
 * Problem if it is not the answer to what this tab asked, or says no.
 */
export async function finish(search, issuer) {
  const params = new URLSearchParams(search);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "null");
  sessionStorage.removeItem(PENDING);
  if (!pending || pending.state !== params.get("state")) throw new Error("this is not the answer to a sign-in of this tab: sign in again");
  // RFC 9207: an answer of another provider must not be taken for this one's.
  if (params.has("iss") && params.get("iss") !== issuer) throw new Error(`the answer is of ${params.get("iss")}, not of ${issuer}`);
  if (params.has("error")) throw new Error(`the provider refuses: ${params.get("error_description") ?? params.get("error")}`);
  const given = grantOf(await send("code", { code: params.get("code"), verifier: pending.verifier }));
  const { pathname, search: query } = new URL(pending.to, location.href);
  if (!isWindow(query)) return keepGrant(given), pathname + query;
  tellOtherTabs({ signedIn: given });
  return null;
}

/** The token to send now. One that is about to end is renewed first, by one tab for all. Raises a Problem. */
export async function freshToken() {
  const held = grant.value;
  if (!held?.refreshToken || Date.now() < held.endsAt - EARLY_MS) return token.value;
  try {
    await renew(held);
  } catch (problem) {
    if (Date.now() >= held.endsAt) throw problem; // The provider is away. Until its end the token is good.
  }
  return token.value;
}

/** Try to get another token in place of `refusedToken`. False: there is none, somebody must sign in again. */
export async function renewed(refusedToken) {
  if (token.value !== null && token.value !== refusedToken) return true;
  const held = grant.value;
  if (!held?.refreshToken || held.token !== refusedToken) return false;
  await renew(held);
  return token.value !== null && token.value !== refusedToken;
}

/** End the refresh token. Returns the page where one signs out at the provider, too, or null. */
export async function end(held) {
  try {
    return (await send("end", { refresh_token: held.refreshToken })).address;
  } catch {
    return null; // Who signs out while the service or the provider is away is signed out here.
  }
}

let renewing = null;

/** Renew once, however many requests ask for it. */
function renew(held) {
  renewing ??= navigator.locks.request("gpu-platform-renew", () => renewNow(held)).finally(() => (renewing = null));
  return renewing;
}

async function renewNow(held) {
  // Providers take a refresh token once, and tabs share it: another one may have been faster.
  const theirs = (await askOtherTabs(me.value?.name))?.grant;
  if (grant.value !== held) return undefined;
  if (theirs && theirs.endsAt > held.endsAt) return keepGrant(theirs);
  let fresh;
  try {
    fresh = grantOf(await send("refresh", { refresh_token: held.refreshToken }));
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    if (grant.value === held) keepGrant({ ...held, refreshToken: null });
    return undefined;
  }
  if (grant.value !== held) return end(fresh); // Somebody signed out meanwhile.
  keepGrant(fresh);
  return tellOtherTabs({ renewed: fresh });
}

function grantOf({ token: value, expires_in_s: lives, refresh_token: refreshToken }) {
  return { token: value, refreshToken, endsAt: Date.now() + lives * 1000 };
}

async function send(what, body) {
  let answer;
  try {
    answer = await fetch(`/sign-in/${what}`, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  } catch {
    throw new Problem(0, { detail: "the service does not answer", code: "unavailable", retryable: true });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer.json();
}

function random(bytes) {
  return encoded(crypto.getRandomValues(new Uint8Array(bytes)).buffer);
}

/** Base64url without padding (RFC 4648, 5). */
function encoded(buffer) {
  return btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
