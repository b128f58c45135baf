/** The output of a rank, as it is written; with search, and to take along as a file. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { getText } from "../../api/http.js";
import { follow } from "../../api/stream.js";
import { ranksOf } from "../../parts/jobs.js";
import { Failed, Panel } from "../../parts/page.js";

/** Lines that are kept on the page. The file to download has all. */
const MOST_LINES = 5000;
/** Lines that one search shows. */
const MOST_FOUND = 1000;

/** The panel. */
export function Logs({ job }) {
  const [rank, setRank] = useState(0);
  const [attempt, setAttempt] = useState(0);
  const [search, setSearch] = useState("");
  const [stay, setStay] = useState(true);
  const [problem, setProblem] = useState(null);
  const { lines, dropped, state } = useOutput(job.id, rank, attempt, setProblem);
  const box = useRef(null);
  useEffect(() => {
    if (stay && !search) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, stay, search]);
  const wanted = search.toLowerCase();
  const found = wanted ? lines.filter((line) => line.text.toLowerCase().includes(wanted)) : lines;
  const shown = wanted ? found.slice(-MOST_FOUND) : found;
  const download = async () => {
    try {
      const text = await getText(`/v1/jobs/${job.id}/logs`, { rank, attempt: attempt || job.attempt });
      save(text, `${job.id}-attempt-${attempt || job.attempt}-rank-${rank}.log`);
    } catch (error) {
      setProblem(error);
    }
  };
  const ranks = ranksOf(job);
  const numbers = (many, from) => Array.from({ length: many }, (_, index) => index + from);
  return html`<${Panel} title="Output" actions=${html`
      <label>Rank <select value=${rank} onChange=${(e) => setRank(Number(e.target.value))}>${numbers(ranks, 0).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label>Attempt <select value=${attempt} onChange=${(e) => setAttempt(Number(e.target.value))}><option value="0">all</option>${numbers(job.attempt, 1).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <input type="search" aria-label="Search in the output" placeholder="Search" value=${search} onInput=${(e) => setSearch(e.target.value)} />
      <button type="button" onClick=${download}>Download</button>`}>
    <${Failed} problem=${problem} />
    ${problem?.status === 403 && html`<p class="muted">An operator may read it with a reason that is recorded: <code>gpu-platform jobs logs ${job.id} --break-glass REASON</code></p>`}
    <div class="log mono" ref=${box} tabindex="0" role="log" aria-label="Output of rank ${rank}" aria-live="off"
      onScroll=${(e) => setStay(e.target.scrollTop + e.target.clientHeight >= e.target.scrollHeight - 24)}>
      ${dropped > 0 && html`<p class="muted">${dropped} earlier lines are not shown here; the download has them.</p>`}
      ${shown.map((line) => html`<div key=${line.number} class=${line.note ? "log-note" : ""}>${wanted && !line.note ? marked(line.text, wanted) : line.text || " "}</div>`)}
      ${!shown.length && !problem && html`<p class="muted">${wanted ? "Nothing fits." : "No output yet."}</p>`}
    </div>
    <p class="log-foot muted" role="status">${wanted ? `${found.length} lines fit. ` : ""}${state === "ended" ? "The end: nothing more comes." : stay ? "New lines are shown as they come." : "Scrolled up: new lines wait below."}</p>
  <//>`;
}

function useOutput(id, rank, attempt, onProblem) {
  const [output, setOutput] = useState({ lines: /** @type {any[]} */ ([]), dropped: 0, state: "live" });
  useEffect(() => {
    let lines = /** @type {any[]} */ ([]);
    let dropped = 0;
    let number = 0;
    let open = false;
    let at = null;
    let frame = 0;
    let state = "live";
    onProblem(null);
    const show = () => {
      frame = 0;
      setOutput({ lines, dropped, state });
    };
    const soon = () => (frame ||= setTimeout(show, 50));
    const add = (text, note = false) => (lines = [...lines, { number: number++, text, note }]);
    soon();
    const stop = follow(`/v1/jobs/${encodeURIComponent(id)}/logs?follow=true&rank=${rank}${attempt ? `&attempt=${attempt}` : ""}`, {
      onEvent(chunk) {
        if (chunk.attempt !== at) {
          at = chunk.attempt;
          open = false;
          add(`— attempt ${at} —`, true);
        }
        if (chunk.note) add(chunk.note, true);
        const pieces = chunk.text.split("\n");
        const fresh = pieces.map((text) => ({ number: 0, text, note: false }));
        if (open) lines = [...lines.slice(0, -1), { ...lines.at(-1), text: lines.at(-1).text + fresh.shift().text }];
        fresh.forEach((line) => (line.number = number++));
        lines = lines.concat(fresh);
        // What follows the last line break is a line that has not ended yet.
        open = true;
        if (lines.at(-1).text === "") {
          lines.pop();
          open = false;
        }
        if (lines.length > MOST_LINES) {
          dropped += lines.length - MOST_LINES;
          lines = lines.slice(-MOST_LINES);
        }
        soon();
      },
      onEnd(problem) {
        state = "ended";
        if (problem) onProblem(problem);
        soon();
      },
    });
    return () => {
      stop();
      clearTimeout(frame);
    };
  }, [id, rank, attempt]);
  return output;
}

function marked(text, wanted) {
  const parts = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

function save(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
