/**
 * Server-sent events (WHATWG HTML, 9.2) by fetch: an EventSource cannot send the header Authorization.
 *
 * A stream that breaks is begun again after its last event (Last-Event-ID), with longer and longer waits. While its tab is
 * hidden there is none: browsers open six connections to a service at most (HTTP/1.1), for all tabs together.
 */
import { now } from "./clock.js";
import { request } from "./http.js";
import { Problem } from "./problem.js";
import { token } from "./session.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
/** The service sends a line every 10 s. Without one for so long the connection is gone, whatever TCP believes. */
const SILENCE_MS = 25_000;
/** So often one looks at the clock for that: a timer of 25 s would not count the time in which the computer slept. */
const LOOK_MS = 5_000;
/** So long a tab may be hidden before its stream ends: one often comes back at once. */
const HIDDEN_MS = 5_000;

/**
 * Follow a stream until it ends, or until the returned function is called.
 *
 * @param {string} path
 * @param {{onEvent: (data: any) => void, onOpen?: () => void, onBroken?: (problem: Error, heardAt: number) => void,
 *   onEnd?: (problem: Problem|null) => void}} listener  heardAt: when something came for the last time (Unix milliseconds).
 *   onEnd: it will not be begun again
 */
export function follow(path, { onEvent, onOpen = () => {}, onBroken = () => {}, onEnd = () => {} }) {
  const stop = new AbortController();
  run(path, { onEvent, onOpen, onBroken, onEnd }, stop.signal);
  return () => stop.abort();
}

async function run(path, listener, stopped) {
  let lastId = "";
  let wait = FIRST_WAIT_MS;
  let heardAt = now();
  while (!stopped.aborted) {
    await whileHidden(stopped);
    const attempt = new AbortController();
    const abort = () => attempt.abort(new Problem(0, { detail: "nothing was heard from the service", retryable: true }));
    stopped.addEventListener("abort", abort);
    let hides;
    let paused = false;
    const watch = () => {
      clearTimeout(hides);
      if (document.hidden) hides = setTimeout(() => ((paused = true), abort()), HIDDEN_MS);
    };
    document.addEventListener("visibilitychange", watch);
    let lastWord = Date.now();
    const silence = setInterval(() => Date.now() - lastWord > SILENCE_MS && abort(), LOOK_MS);
    const heard = () => {
      lastWord = Date.now();
      heardAt = now();
    };
    try {
      const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
      const answer = await request("GET", path, undefined, { headers, signal: attempt.signal });
      heard();
      listener.onOpen();
      for await (const message of messages(answer.body, heard)) {
        wait = FIRST_WAIT_MS;
        if (message.id) lastId = message.id;
        if (message.event === "end") return listener.onEnd(null);
        if (message.event === "problem") throw problemIn(JSON.parse(message.data));
        listener.onEvent(JSON.parse(message.data));
      }
      throw new Problem(0, { detail: "the connection ended", retryable: true });
    } catch (error) {
      if (stopped.aborted) return;
      if (paused) continue;
      if (error instanceof Problem && error.status !== 401 && error.status >= 400 && !error.retryable) return listener.onEnd(error);
      listener.onBroken(error instanceof Problem ? error : new Problem(0, { detail: "the connection was cut", retryable: true }), heardAt);
      if (error.status === 401) await signedIn(stopped);
    } finally {
      clearInterval(silence);
      clearTimeout(hides);
      document.removeEventListener("visibilitychange", watch);
      stopped.removeEventListener("abort", abort);
      attempt.abort();
    }
    // Half of the wait is random, so that all open pages do not come back at the same moment.
    await sleep(wait * (0.5 + Math.random() / 2), stopped);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

/** A stream ends with a problem. If its token has ended, the request for the next one renews it, or says so. */
function problemIn(body) {
  return body.code === "not_signed_in" ? new Problem(0, { ...body, retryable: true }) : new Problem(body.status ?? 400, { ...body, retryable: false });
}

/** Until somebody has signed in again, or the stream is no longer wanted. */
function signedIn(stopped) {
  return new Promise((resolve) => {
    const done = () => (queueMicrotask(() => end()), resolve(undefined));
    const end = token.subscribe((value) => value !== null && done());
    stopped.addEventListener("abort", done, { once: true });
  });
}

/** The messages of a body. Comments keep the connection alive and are no messages. */
export async function* messages(body, heard = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const message = parse(block);
      if (message.data !== null) yield message;
    }
  }
}

function parse(block) {
  const message = { id: "", event: "message", data: /** @type {any} */ (null) };
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const [name, value] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (name === "data") message.data = message.data === null ? value : `${message.data}\n${value}`;
    else if (name === "id" || name === "event") message[name] = value;
  }
  return message;
}

/** Until the tab is seen, or the stream is no longer wanted. */
function whileHidden(stopped) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !stopped.aborted) return;
      document.removeEventListener("visibilitychange", look);
      stopped.removeEventListener("abort", look);
      resolve(undefined);
    };
    document.addEventListener("visibilitychange", look);
    stopped.addEventListener("abort", look);
    look();
  });
}

function sleep(ms, stopped) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stopped.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}
