/** The answer of a what-if: figures, GPUs and waiting jobs over time, and the start of each waiting job, as it is and with the changes. */
import { useMemo } from "preact/hooks";
import { html } from "htm/preact";
import { Chart } from "../../parts/chart.js";
import { duration, number, percent, time } from "../../parts/format.js";
import { Empty, Panel, sentence } from "../../parts/page.js";
import { Link } from "../../parts/router.js";

const POINTS = 160;
const MOST_JOBS = 200;

/** `names`: job -> its name. */
export function Compared({ answer, names }) {
  const { now, then } = answer;
  const { times, held, waiting } = useMemo(() => series(answer), [answer]);
  const rows = [
    ["GPUs", number(now.gpus), number(then.gpus), 0],
    ["All jobs have ended after", duration(now.end_s), duration(then.end_s), now.end_s - then.end_s],
    ["GPUs allocated", percent(now.allocation_ratio), percent(then.allocation_ratio), 0],
    ["Waiting jobs that start", number(now.started), number(then.started), then.started - now.started],
    ["Jobs that still wait at the end", number(now.waiting), number(then.waiting), now.waiting - then.waiting],
    ["Wait from now, median", duration(now.wait_p50_s), duration(then.wait_p50_s), now.wait_p50_s - then.wait_p50_s],
    ["Wait from now, 90 % within", duration(now.wait_p90_s), duration(then.wait_p90_s), now.wait_p90_s - then.wait_p90_s],
    ["Wait from now, longest", duration(now.wait_max_s), duration(then.wait_max_s), now.wait_max_s - then.wait_max_s],
    ["Preemptions", number(now.preemptions), number(then.preemptions), now.preemptions - then.preemptions],
  ];
  return html`
    <${Panel} title="Comparison">
      <p class="muted small-text">State of ${time(answer.at)}. ${answer.notes.map(sentence).join(" ")} New jobs do not come.</p>
      <div class="scroll" tabindex="0" role="group" aria-label="Comparison, can be scrolled"><table>
        <thead><tr><th scope="col"></th><th scope="col" class="num">As it is</th><th scope="col" class="num">With the changes</th><th scope="col"></th></tr></thead>
        <tbody>${rows.map(([name, one, other, gain]) => html`<tr key=${name}><th scope="row">${name}</th><td class="num">${one}</td><td class="num">${other}</td>
          <td class=${verdict(gain)}>${verdict(gain)}</td></tr>`)}</tbody>
      </table></div>
    <//>
    <${Panel} title="Over time">
      <div class="charts"><${Chart} label="GPUs that jobs hold" unit="" times=${times} lines=${held} /><${Chart} label="Waiting jobs" unit="" times=${times} lines=${waiting} /></div>
    <//>
    <${Panel} title="Start of each waiting job">
      ${!answer.starts.length ? html`<${Empty}>No job waits.<//>` : html`<div class="scroll tall" tabindex="0" role="group" aria-label="Starts, can be scrolled"><table class="sticky">
        <thead><tr><th scope="col">Job</th><th scope="col" class="num">GPUs</th><th scope="col" class="num">As it is</th><th scope="col" class="num">With the changes</th><th scope="col" class="num">Difference</th></tr></thead>
        <tbody>${answer.starts.slice(0, MOST_JOBS).map((one) => html`<tr key=${one.job_id}>
          <th scope="row"><${Link} to=${`/jobs/${one.job_id}`}>${names.get(one.job_id) ?? one.job_id}<//><small class="muted">${one.namespace}</small></th>
          <td class="num">${one.gpus || "–"}</td><td class="num">${start(one.now_s)}</td><td class="num">${start(one.then_s)}</td><td class="num">${difference(one)}</td></tr>`)}</tbody>
      </table></div>`}
    <//>`;
}

function verdict(gain) {
  return Math.abs(gain) < 1e-9 ? "" : gain > 0 ? "better" : "worse";
}

function start(at) {
  return at === null ? "not in this time" : at < 1 ? "now" : `in ${duration(at)}`;
}

function difference({ now_s: now, then_s: then }) {
  if (now === null || then === null) return now === then ? "–" : html`<span class=${now === null ? "better" : "worse"}>${now === null ? "starts at all" : "starts no more"}</span>`;
  if (Math.abs(now - then) < 1) return "none";
  return html`<span class=${then < now ? "better" : "worse"}>${duration(Math.abs(now - then))} ${then < now ? "earlier" : "later"}</span>`;
}

/** Both runs on one axis of time. After its end a run holds nothing, and the jobs that never start go on waiting. */
function series({ at, now, then }) {
  const begin = Date.parse(at) / 1000;
  const end = Math.max(now.end_s, then.end_s, 1);
  const offsets = Array.from({ length: POINTS }, (_, index) => (index / (POINTS - 1)) * end);
  const value = (run, quantity, after) => (offset) => {
    const values = run.series[quantity];
    if (offset >= run.end_s || !values.length) return after;
    return values[Math.min(values.length - 1, Math.floor((offset / run.end_s) * values.length))];
  };
  const lines = (quantity, after) => [
    { name: "as it is", values: offsets.map(value(now, quantity, after(now))) },
    { name: "with the changes", values: offsets.map(value(then, quantity, after(then))) },
  ];
  return { times: offsets.map((offset) => begin + offset), held: lines("held_gpus", () => 0), waiting: lines("waiting_jobs", (run) => run.waiting) };
}
