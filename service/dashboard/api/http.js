/** Requests to the REST API of this service, with the token of who uses the dashboard. */
import { learn } from "./clock.js";
import { Problem, problemOf } from "./problem.js";
import { freshToken, renewed } from "./provider.js";
import { keep, me, refused, token } from "./session.js";

/** An answer begins within this time, or not at all: a what-if may compute for a minute. */
const ANSWER_MS = 90_000;

/** GET a path of the API. `params`: a list of values repeats the parameter; null and "" are left out. */
export async function get(path, params = {}, options = {}) {
  return (await request("GET", path + query(params), undefined, options)).json();
}

/** POST a body as JSON. */
export async function post(path, body = {}, headers = {}) {
  return (await request("POST", path, JSON.stringify(body), { headers })).json();
}

/** An answer that is a file: its bytes, as they are. */
export async function getFile(path, params = {}, options = {}) {
  return (await request("GET", path + query(params), undefined, options)).blob();
}

/** All items of a list, page by page. `onPage` hears of each page, so that the first can be shown early. */
export async function getAll(path, params = {}, onPage = (/** @type {any[]} */ _items) => {}) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(path, { ...params, cursor });
    items.push(...page.items);
    onPage(page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}

/** Ask who this API token belongs to, and keep it if the service knows it. Raises a Problem otherwise. */
export async function signIn(candidate) {
  const answer = await sendWith(candidate, "GET", "/v1/whoami");
  me.value = await answer.json();
  keep(candidate);
}

/** Ask who the kept token belongs to. Raises a Problem otherwise. */
export async function knowMe() {
  me.value = await get("/v1/whoami");
}

/**
 * Send a request. Raises a Problem for every answer that is an error, and for a service that is away. A token that has
 * ended is renewed, if its provider allows that, and the request is sent again.
 */
export async function request(method, path, body, options = {}) {
  const used = await freshToken();
  try {
    return await sendWith(used, method, path, body, options);
  } catch (problem) {
    if (problem.status !== 401 || !(await renewed(used))) {
      if (problem.status === 401 && used === token.value) refused(problem);
      throw problem;
    }
  }
  return sendWith(token.value, method, path, body, options);
}

/**
 * @param {string|null} used  the token
 * @param {string} method
 * @param {string} path
 * @param {string} [body]
 * @param {{headers?: Record<string, string>, signal?: AbortSignal}} [options]
 */
async function sendWith(used, method, path, body, { headers = {}, signal } = {}) {
  let answer;
  const sentAt = Date.now();
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWER_MS);
  try {
    answer = await fetch(path, {
      method,
      body,
      signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal,
      headers: {
        ...(used ? { Authorization: `Bearer ${used}` } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { detail: "the service does not answer", code: "unavailable", retryable: true });
  } finally {
    clearTimeout(timer);
  }
  learn(answer, sentAt);
  if (answer.ok) return answer;
  throw await problemOf(answer);
}

/** A query string. */
export function query(params) {
  const pairs = Object.entries(params).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((one) => one !== null && one !== undefined && one !== "")
      .map((one) => [name, String(one)]),
  );
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}
