/**
 * Who uses the dashboard: their token, and what the service says about them.
 *
 * The token is in the sessionStorage of this tab (ADR 91), with what renews it if it is of an identity provider (ADR 92).
 * A new tab asks the other tabs of the dashboard for it; they are of the same origin, so nobody else hears the question
 * or the answer.
 */
import { computed, effect, signal } from "@preact/signals";

const KEY = "gpu-platform-token";
const GRANT = "gpu-platform-grant";
/** How often a person has signed out in this browser: in localStorage, and of each tab when that person came to it. */
const LEFT = "gpu-platform-left";
const DRAFTS = "gpu-platform-drafts";
const WAIT_FOR_TABS_MS = 150;

// A tab that was on another site, or that the browser had put to sleep, did not hear that somebody signed out.
if (wasLeft()) [KEY, GRANT, DRAFTS, LEFT].forEach((key) => write(key, null));

/** @type {import("@preact/signals").Signal<string|null>} */
export const token = signal(read(KEY));
/** What renews the token. Null: it is an API token. @type {import("@preact/signals").Signal<import("./provider.js").Grant|null>} */
export const grant = signal(JSON.parse(read(GRANT) ?? "null"));
/** The answer of `/v1/whoami`, or null while nobody has signed in. @type {import("@preact/signals").Signal<any>} */
export const me = signal(null);
/** Why somebody must sign in again, if the service refused a token. @type {import("@preact/signals").Signal<any>} */
export const refusal = signal(null);
/** True if the sign-in has ended while pages were open: they stay as they are until somebody signs in again. */
export const ended = signal(false);
/** Where one signs out at the provider, after one has signed out here. @type {import("@preact/signals").Signal<string|null>} */
export const endAtProvider = signal(null);

/** True for who may drain hosts and GPUs. */
export const operatesCluster = computed(() => atLeast("operator", "*"));
/** True for who may read what is about all namespaces: reports, GPU records, snapshots. */
export const readsCluster = computed(() => atLeast("viewer", "*"));
/** True for who may submit jobs somewhere. */
export const submits = computed(() => Object.keys(me.value?.roles ?? {}).some((name) => atLeast("user", name)));

const ORDER = ["viewer", "user", "operator", "admin"];
const tabs = "BroadcastChannel" in globalThis ? new BroadcastChannel("gpu-platform") : null;

if (tabs) {
  tabs.addEventListener("message", ({ data }) => {
    const name = me.value?.name;
    if (data?.ask && token.value) tabs.postMessage({ token: token.value, grant: grant.value, name });
    // Two people may use two tabs: one who signs out does not take the other along.
    if (data?.signedOut && (!name || data.name === name)) forget();
    // Another tab may be somebody else's: a renewed token is taken of the same person only.
    if (data?.renewed && data.name === name && grant.value && data.renewed.endsAt > grant.value.endsAt) keepGrant(data.renewed);
    if (data?.signedIn && (ended.value || !me.value)) keepGrant(data.signedIn);
  });
}

addEventListener("pageshow", () => wasLeft() && forget());

effect(() => {
  const person = me.value?.name;
  if (!person || !token.value || sinceSignIn()?.person === person) return;
  write(LEFT, JSON.stringify({ person, times: timesLeft(person) }));
});

/** True if the person has at least this role in the namespace, or in the whole cluster ("*"). */
export function atLeast(role, namespace) {
  const roles = me.value?.roles ?? {};
  return [roles[namespace], roles["*"]].some((held) => ORDER.indexOf(held) >= ORDER.indexOf(role));
}

/** True if the person may stop this job: it is their own, or they are an operator there. */
export function mayStop(spec) {
  const own = spec.user === me.value?.name && atLeast("user", spec.namespace);
  return own || atLeast("operator", spec.namespace);
}

/** Keep a token that the service has accepted. */
export function keep(value) {
  if (grant.value && grant.value.token !== value) write(GRANT, (grant.value = null));
  write(KEY, (token.value = value));
  refusal.value = null;
  endAtProvider.value = null;
  ended.value = false;
}

/** Keep what the provider gave. @param {import("./provider.js").Grant} given */
export function keepGrant(given) {
  grant.value = given;
  write(GRANT, JSON.stringify(given));
  keep(given.token);
}

/** Tell the other tabs something. */
export function tellOtherTabs(said) {
  tabs?.postMessage({ ...said, name: me.value?.name });
}

/** Forget the token, here and in all other tabs. Returns what is left to end at the provider, if there is something. */
export function signOut() {
  const held = grant.value;
  const person = me.value?.name;
  tellOtherTabs({ signedOut: true });
  forget();
  if (person) write(`${LEFT}-${person}`, String(Number(timesLeft(person)) + 1), "localStorage");
  return held;
}

/** The service refused the token of this tab. What is shown stays until somebody signs in again. */
export function refused(problem) {
  if (ended.value) return;
  const shown = me.value;
  forget();
  refusal.value = problem;
  me.value = shown;
  ended.value = shown !== null;
}

/** {token, grant, name} of another tab, or null. `name`: only of tabs of that person. */
export function askOtherTabs(name) {
  if (!tabs) return Promise.resolve(null);
  return new Promise((resolve) => {
    const hear = ({ data }) => data?.token && (name === undefined || data.name === name) && done(data);
    const done = (found) => {
      tabs.removeEventListener("message", hear);
      clearTimeout(timer);
      resolve(found);
    };
    const timer = setTimeout(() => done(null), WAIT_FOR_TABS_MS);
    tabs.addEventListener("message", hear);
    tabs.postMessage({ ask: true });
  });
}

/** What was typed into forms, and by whom: `{person, forms}`. */
export function readDrafts() {
  return JSON.parse(read(DRAFTS) ?? "null") ?? { person: null, forms: {} };
}

/** Keep what was typed into forms. They hold what the person would send, so they end with the sign-in. */
export function writeDrafts(drafts) {
  write(DRAFTS, Object.keys(drafts.forms).length ? JSON.stringify(drafts) : null);
}

function forget() {
  write(DRAFTS, null);
  me.value = null;
  ended.value = false;
  write(KEY, (token.value = null));
  write(GRANT, (grant.value = null));
  write(LEFT, null);
}

/** Who uses this tab, and how often that person had signed out before, or null. @returns {{person: string, times: string}|null} */
function sinceSignIn() {
  return JSON.parse(read(LEFT) ?? "null");
}

/** True if the person of this tab has signed out elsewhere since they came to it. */
function wasLeft() {
  const since = sinceSignIn();
  return read(KEY) !== null && since !== null && since.times !== timesLeft(since.person);
}

/** @param {string} person */
function timesLeft(person) {
  return read(`${LEFT}-${person}`, "localStorage") ?? "0";
}

/** @param {string} key @param {"sessionStorage"|"localStorage"} where */
function read(key, where = "sessionStorage") {
  try {
    return globalThis[where].getItem(key);
  } catch {
    return null;
  }
}

/** @param {string} key @param {string|null} value @param {"sessionStorage"|"localStorage"} where */
function write(key, value, where = "sessionStorage") {
  try {
    if (value === null) globalThis[where].removeItem(key);
    else globalThis[where].setItem(key, value);
  } catch {
    // Storage is off: the token lives as long as this page.
  }
}
