/**
 * What happens in the cluster, told to the page that is shown.
 *
 * There is one stream of events for the whole dashboard. Its events are collected until the next frame is drawn, so a
 * burst of them costs one drawing. Who may not read the whole cluster gets no events of hosts and GPUs: pages that show
 * those also look again now and then.
 */
import { signal } from "@preact/signals";
import { now } from "./clock.js";
import { follow } from "./stream.js";

/** Since when the page may be out of date (Unix milliseconds), or null: it is live. @type {import("@preact/signals").Signal<number|null>} */
export const staleSince = signal(null);
/** Why, for people. */
export const staleBecause = signal("");

/** Since when the page has what it shows, if a question about that is without an answer for long; or null. @type {import("@preact/signals").Signal<number|null>} */
export const lateSince = signal(null);

const late = new Map();
const listeners = new Set();
const resumed = new Set();
let collected = [];
let scheduled = false;
let stop = null;

/** Begin to follow. `stopLive` ends it. */
export function startLive() {
  if (stop) return;
  stop = follow("/v1/events", {
    onOpen() {
      const missed = staleSince.value !== null;
      staleSince.value = null;
      if (missed) resumed.forEach((call) => call());
    },
    onEvent(event) {
      collected.push(event);
      if (!scheduled) {
        scheduled = true;
        whenDrawn(flush);
      }
    },
    onBroken(error, heardAt) {
      staleBecause.value = error.message;
      staleSince.value ??= heardAt;
    },
    onEnd(problem) {
      // 410: the events after the last one that was seen were removed meanwhile. Begin anew, from now on.
      stop = null;
      if (problem?.status === 410) startLive();
      else if (problem) {
        staleBecause.value = problem.message;
        staleSince.value ??= now();
      }
    },
  });
}

/** `asker` has what it shows since then, and waits for an answer in vain. Null: it does not. */
export function beLate(asker, since) {
  if (since === null) late.delete(asker);
  else late.set(asker, since);
  lateSince.value = late.size ? Math.min(...late.values()) : null;
}

/** End the stream, e.g. because the person signed out. */
export function stopLive() {
  stop?.();
  stop = null;
  staleSince.value = null;
}

/**
 * Call `onEvents` with each batch of events, and `onResumed` after the stream was away: events between were missed only
 * if it was away for very long, but what was asked meanwhile may have failed. Returns the function that ends it.
 */
export function listen(onEvents, onResumed = () => {}) {
  listeners.add(onEvents);
  resumed.add(onResumed);
  return () => {
    listeners.delete(onEvents);
    resumed.delete(onResumed);
  };
}

function flush() {
  const batch = collected;
  collected = [];
  scheduled = false;
  listeners.forEach((call) => call(batch));
}

/** A hidden tab draws no frames, but must not collect events without end. */
function whenDrawn(call) {
  if (document.hidden) setTimeout(call, 1000);
  else requestAnimationFrame(call);
}
