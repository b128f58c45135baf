/** The output of a rank as lines: the newest of all, or those in all of it that fit a search. */
import { useEffect, useState } from "preact/hooks";
import { follow } from "../../api/stream.js";

/** Lines that are kept on the page. The file to download has all. */
export const MOST_LINES = 5000;
/** Lines that one search shows. */
export const MOST_FOUND = 1000;
/** A line that is longer is shown in parts: a program may write for hours without a line break. */
const LONGEST_LINE = 100_000;
/** Colours and cursor movements (ECMA-48), and titles of windows: a page shows none. */
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/g;

/**
 * Follow the output.
 *
 * @param {{id: string, rank: number, attempt: number, wanted: string}} asked  attempt 0: all. wanted: "" or what lines must
 *   contain, in small letters
 * @param {(problem: any) => void} onProblem
 * @returns {{lines: any[], total: number, fitting: number, dropped: number, ended: boolean, wanted: string}}
 *   total: lines that were read. fitting: of them. dropped: of these not among `lines`. wanted: by what they were chosen.
 */
export function useOutput({ id, rank, attempt, wanted }, onProblem) {
  const [output, setOutput] = useState({ lines: /** @type {any[]} */ ([]), total: 0, fitting: 0, dropped: 0, ended: false, wanted: "" });
  useEffect(() => {
    const most = wanted ? MOST_FOUND : MOST_LINES;
    let lines = /** @type {any[]} */ ([]);
    let [total, fitting, dropped, number] = [0, 0, 0, 0];
    let open = "";
    let at = null;
    let timer = 0;
    let ended = false;
    onProblem(null);
    const fits = (text) => text.toLowerCase().includes(wanted);
    const line = (text, note = false) => ({ number: number++, text, note });
    const show = () => {
      timer = 0;
      const half = open && fits(shown(open)) ? [{ number, text: shown(open), note: false }] : [];
      setOutput({ lines: half.length ? [...lines, ...half] : lines, total, fitting: fitting + half.length, dropped, ended, wanted });
    };
    const soon = () => (timer ||= setTimeout(show, 50));
    const take = (texts, note = false) => {
      if (note && wanted) return;
      const all = lines.concat(texts.map(shown).filter(fits).map((text) => line(text, note)));
      if (!note) [total, fitting] = [total + texts.length, fitting + all.length - lines.length];
      dropped += all.slice(0, -most).filter((one) => !one.note).length;
      lines = all.slice(-most);
    };
    const close = () => {
      if (open) take([open]);
      open = "";
    };
    soon();
    const stop = follow(`/v1/jobs/${encodeURIComponent(id)}/logs?follow=true&rank=${rank}${attempt ? `&attempt=${attempt}` : ""}`, {
      onEvent(chunk) {
        if (chunk.attempt !== at) {
          close();
          at = chunk.attempt;
          take([`— attempt ${at} —`], true);
        }
        if (chunk.note) {
          close();
          take([chunk.note], true);
        }
        const pieces = (open + chunk.text).split("\n");
        // What follows the last line break is a line that has not ended yet.
        open = pieces.pop() ?? "";
        open = open.slice(open.lastIndexOf("\r", open.length - 2) + 1);
        take(pieces);
        if (open.length > LONGEST_LINE) close();
        soon();
      },
      onEnd(problem) {
        close();
        ended = true;
        if (problem) onProblem(problem);
        soon();
      },
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [id, rank, attempt, wanted]);
  return output;
}

/** A line as a terminal shows it in the end: what stands after the last carriage return is written over the rest. */
function shown(text) {
  if (!text.includes("\r") && !text.includes("\x1b")) return text;
  const without = text.replace(ESCAPES, "").replace(/\r+$/, "");
  return without.slice(without.lastIndexOf("\r") + 1);
}
