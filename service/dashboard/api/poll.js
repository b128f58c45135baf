/** Ask for the same thing again and again, one question at a time, and not while nobody looks. */
import { useEffect, useRef } from "preact/hooks";
import { now } from "./clock.js";
import { beLate, listen } from "./live.js";

/** An answer that takes longer is late: the page says so, since the stream of events may live while the database hangs. */
const LATE_MS = 10_000;
/** So long a slow service is left alone at most: it may have been away, and be back. */
const LONGEST_MS = 60_000;

/**
 * Load something when the page is shown, `every` milliseconds after, and `settle` milliseconds after events that
 * `concerns` says are about it. A load that takes long makes the next one later, so that a slow service is not asked
 * more than it can answer.
 *
 * @param {() => Promise<void>} load
 * @param {{every: number, concerns?: (event: any) => boolean, settle?: number}} options
 * @param {any[]} dependencies  load at once when one of them changes
 */
export function useLoader(load, { every, concerns = () => false, settle = 300 }, dependencies = []) {
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    let timer = null;
    let due = Infinity;
    let busy = false;
    let again = false;
    let ended = false;
    let loadedAt = null;
    const run = async () => {
      timer = null;
      due = Infinity;
      if (document.hidden && !again) return plan(every);
      busy = true;
      again = false;
      const began = performance.now();
      const slow = setTimeout(() => loadedAt && beLate(run, loadedAt), LATE_MS);
      try {
        await latest.current();
      } catch {
        // The loader shows its own errors; the next look may succeed.
      }
      clearTimeout(slow);
      beLate(run, null);
      loadedAt = now();
      busy = false;
      if (ended) return;
      const took = performance.now() - began;
      plan(again ? Math.max(settle, took * 5) : Math.max(every, Math.min(took * 10, LONGEST_MS)));
    };
    const plan = (ms) => {
      if (ended || performance.now() + ms >= due) return;
      clearTimeout(timer);
      due = performance.now() + ms;
      timer = setTimeout(run, ms);
    };
    const soon = (ms) => {
      if (busy) again = true;
      else plan(ms);
    };
    const seen = () => !document.hidden && soon(0);
    const end = listen(
      // Not "some": it would stop at the first, and who is asked may take note of each.
      (events) => events.filter(concerns).length > 0 && soon(settle),
      () => soon(0),
    );
    document.addEventListener("visibilitychange", seen);
    again = true;
    run();
    return () => {
      ended = true;
      clearTimeout(timer);
      loadedAt = null;
      beLate(run, null);
      end();
      document.removeEventListener("visibilitychange", seen);
    };
  }, dependencies);
}
