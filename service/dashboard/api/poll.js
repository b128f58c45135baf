/** Ask for the same thing again and again, one question at a time, and not while nobody looks. */
import { useEffect, useRef } from "preact/hooks";
import { listen } from "./live.js";

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
    const run = async () => {
      timer = null;
      due = Infinity;
      if (document.hidden && !again) return plan(every);
      busy = true;
      again = false;
      const began = performance.now();
      try {
        await latest.current();
      } catch {
        // The loader shows its own errors; the next look may succeed.
      }
      busy = false;
      if (ended) return;
      const took = performance.now() - began;
      plan(again ? Math.max(settle, took * 5) : Math.max(every, took * 10));
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
      end();
      document.removeEventListener("visibilitychange", seen);
    };
  }, dependencies);
}
