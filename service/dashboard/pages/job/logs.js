/** The output of a rank, as it is written; with search, and to take along as a file. What one looks at is in the address. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { getFile } from "../../api/http.js";
import { number } from "../../parts/format.js";
import { ranksOf } from "../../parts/jobs.js";
import { Failed, Panel } from "../../parts/page.js";
import { params, setParams } from "../../parts/router.js";
import { MOST_FOUND, useOutput } from "./output.js";

/** So long nothing is typed before all of the output is searched. */
const PAUSE_MS = 300;

/** The panel. `?rank=`, `?attempt=` and `?find=` in the address. */
export function Logs({ job }) {
  const asked = params();
  const ranks = ranksOf(job);
  const rank = wholeBelow(asked.get("rank"), ranks);
  const attempt = wholeBelow(asked.get("attempt"), job.attempt + 1);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const download = async () => {
    const which = attempt || job.attempt;
    setBusy(true);
    setProblem(null);
    try {
      save(await getFile(`/v1/jobs/${job.id}/logs`, { rank, attempt: which }), `${job.id}-attempt-${which}-rank-${rank}.log`);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  const numbers = (many, from) => Array.from({ length: many }, (_, index) => index + from);
  const set = (name) => (event) => setParams({ [name]: event.target.value === "0" ? null : event.target.value });
  return html`<${Panel} title="Output" actions=${html`
      <label>Rank <select value=${rank} onChange=${set("rank")}>${numbers(ranks, 0).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label>Attempt <select value=${attempt} onChange=${set("attempt")}><option value="0">all</option>${numbers(job.attempt, 1).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <input type="search" aria-label="Search in the output" placeholder="Search" value=${asked.get("find") ?? ""} onInput=${set("find")} />
      <button type="button" disabled=${busy} onClick=${download}>${busy ? "Downloading…" : "Download"}</button>`}>
    <${Failed} problem=${problem} again="Try again in a moment." />
    <${Lines} key=${`${rank}/${attempt}`} job=${job} rank=${rank} attempt=${attempt} search=${asked.get("find") ?? ""} />
  <//>`;
}

/** A parameter of the address as a number, 0 if it is none that may be. */
function wholeBelow(text, limit) {
  const value = Number(text ?? 0);
  return Number.isInteger(value) && value >= 0 && value < limit ? value : 0;
}

function Lines({ job, rank, attempt, search }) {
  const wanted = search.toLowerCase();
  const [stay, setStay] = useState(true);
  const [problem, setProblem] = useState(null);
  // While all lines are on the page they are searched here. Of a longer output all is read again for a search.
  const [long, setLong] = useState(false);
  const paused = usePaused(wanted);
  const output = useOutput({ id: job.id, rank, attempt, wanted: long ? paused : "" }, setProblem);
  const { lines, total, dropped, ended } = output;
  useEffect(() => {
    if (dropped > 0) setLong(true);
  }, [dropped > 0]);
  const here = output.wanted !== wanted;
  const found = here ? lines.filter((line) => !wanted || (!line.note && line.text.toLowerCase().includes(wanted))) : lines;
  const shown = wanted ? found.slice(-MOST_FOUND) : found;
  const fit = here ? found.length : output.fitting;
  const box = useRef(null);
  useEffect(() => {
    if (stay && !wanted) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, stay, wanted]);
  return html`<${Failed} problem=${problem} />
    ${problem?.status === 403 && html`<p class="muted">An operator may read it with a reason that is recorded: <code>gpu-platform jobs logs ${job.id} --break-glass REASON</code></p>`}
    <div class="log mono" ref=${box} tabindex="0" role="log" aria-label="Output of rank ${rank}" aria-live="off"
      onScroll=${(e) => setStay(e.target.scrollTop + e.target.clientHeight >= e.target.scrollHeight - 24)}>
      ${!wanted && dropped > 0 && html`<p class="muted">${number(dropped)} earlier lines are not shown here: a search looks into them, too, and the download has them.</p>`}
      ${shown.map((line) => html`<div key=${line.number} class=${line.note ? "log-note" : ""}>${wanted ? marked(line.text, wanted) : line.text || " "}</div>`)}
      ${!shown.length && !problem && html`<p class="muted">${wanted ? "Nothing fits." : ended ? "It wrote nothing." : "No output yet."}</p>`}
    </div>
    <p class="log-foot muted" role="status">${said(wanted, here && long, fit, total)}${problem ? "" : ended ? "The end: nothing more comes." : stay ? "New lines are shown as they come." : "Scrolled up: new lines wait below."}</p>`;
}

/** What a search found. `busy`: the lines that are no more on the page are still to be read. */
function said(wanted, busy, fit, total) {
  if (!wanted) return "";
  if (busy) return "Searching all lines… ";
  return `${number(fit)} of ${number(total)} lines fit${fit > MOST_FOUND ? `; the last ${number(MOST_FOUND)} are shown` : ""}. `;
}

/** A text, once it was not changed for a while. */
function usePaused(text) {
  const [paused, setPaused] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setPaused(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return paused;
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

function save(file, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
