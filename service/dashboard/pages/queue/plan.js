/** The plan of the cluster over time: starts of waiting jobs, and what runs on the GPUs of each host until when. */
import { useMemo } from "preact/hooks";
import { html } from "htm/preact";
import { count, duration } from "../../parts/format.js";
import { axisOf, Row, Scale, span } from "../../parts/gantt.js";
import { useGrowing } from "../../parts/growing.js";
import { gpusOf } from "../../parts/jobs.js";
import { Panel } from "../../parts/page.js";
import { Link, params, setParams } from "../../parts/router.js";

const AHEAD = { auto: "all of it", 3600: "1 hour", 14400: "4 hours", 43200: "12 hours", 86400: "1 day", 604800: "7 days" };
const LONGEST_S = 7 * 86_400;
/** Of a larger cluster only the hosts are shown at first that waiting jobs need. */
const FEW_HOSTS = 60;

/** The panel. `chosen`: the waiting job of which the holders are marked. */
export function Plan({ queue, running, more, hosts, windows, now, chosen }) {
  const asked = params();
  const waiting = queue.items;
  const ahead = Number(asked.get("ahead")) || reach(waiting, running, now);
  const axis = useMemo(() => axisOf(now, ahead), [now, ahead]);
  const blocking = new Set(waiting.find((entry) => entry.job_id === chosen)?.reason?.holders.map((one) => one.job_id) ?? []);
  const needed = new Set(waiting.flatMap(({ reason }) => [...(reason?.holders ?? []).flatMap((one) => one.hosts), ...(reason?.promised_hosts ?? []).map((one) => one.host)]));
  const onlyNeeded = asked.has("hosts") ? asked.get("hosts") === "needed" : hosts.length > FEW_HOSTS;
  const shown = onlyNeeded ? hosts.filter((host) => needed.has(host.name)) : hosts;
  const bars = useMemo(() => barsByHost({ hosts, running, waiting, windows, now }), [hosts, running, waiting, windows, now]);
  const drawn = useGrowing(shown.length, 24);
  const actions = html`<label>Ahead <select value=${asked.get("ahead") ?? "auto"} onChange=${(e) => setParams({ ahead: e.target.value === "auto" ? null : e.target.value })}>
      ${["auto", ...Object.keys(AHEAD).filter((key) => key !== "auto")].map((key) => html`<option value=${key}>${AHEAD[key]}</option>`)}</select></label>
    <label>Hosts <select value=${onlyNeeded ? "needed" : "all"} onChange=${(e) => setParams({ hosts: e.target.value })}>
      <option value="all">all</option><option value="needed">that waiting jobs need</option></select></label>`;
  return html`<${Panel} title="Plan" actions=${actions}>
    <ul class="legend" aria-label="Meaning of the bars">
      <li><i class="gantt-key runs"></i>runs, until its time limit</li><li><i class="gantt-key runs open"></i>runs without a time limit</li>
      <li><i class="gantt-key promised"></i>promised start</li><li><i class="gantt-key estimated"></i>estimated start</li>
      ${windows.length > 0 && html`<li><i class="gantt-key maintenance"></i>maintenance</li><li><i class="gantt-key reserved"></i>reserved</li>`}
      <li><i class="gantt-key runs blocks"></i>holds what the marked job needs</li></ul>
    <div class="gantt scroll" tabindex="0" role="group" aria-label="Plan, can be scrolled"><div class="gantt-inside">
      <${Scale} axis=${axis} />
      ${waiting.length > 0 && html`<h3>Waiting</h3><ul>${waiting.map((entry) => html`<${Row} key=${entry.job_id} axis=${axis} bars=${startOf(entry, now)}
        name=${html`<${Link} to=${`/jobs/${entry.job_id}`}>${entry.spec.name}<//><span class="muted"> ${count(gpusOf(entry.spec), "GPU")}</span>`} />`)}</ul>`}
      <h3>Hosts ${more && html`<span class="muted">with the newest 1,000 jobs</span>`}</h3>
      <ul>${shown.slice(0, drawn).map((host) => html`<${Row} key=${host.name} axis=${axis} lanes=${Math.max(1, host.gpus_total)} laneHeight=${5}
        bars=${(bars.get(host.name) ?? []).map((bar) => (blocking.has(bar.id) ? { ...bar, kind: `${bar.kind} blocks` } : bar))}
        name=${html`<${Link} to=${`/hosts/${encodeURIComponent(host.name)}`}>${host.name}<//><span class="muted"> ${host.state === "READY" ? `${host.gpus_free} free` : host.state.toLowerCase()}</span>`} />`)}</ul>
      ${!shown.length && html`<p class="empty">${onlyNeeded ? "No waiting job names a host that it needs." : "There are no hosts."}</p>`}
    </div></div>
  <//>`;
}

/** So far ahead that every start and every end is on the axis, within a week. */
function reach(waiting, running, now) {
  const ends = running.map((job) => endOf(job, now)).filter((end) => end !== null);
  const starts = waiting.map(({ reason }) => reason?.starts_by ?? reason?.estimated_start).filter(Boolean);
  return Math.min(LONGEST_S, Math.max(900, ...[...ends, ...starts].map((at) => (at - now) * 1.1)));
}

function startOf({ job_id: id, spec, reason }, now) {
  const at = reason?.starts_by ?? reason?.estimated_start;
  if (!at) return [];
  const kind = reason.starts_by ? "promised" : "estimated";
  const tip = `${spec.name}: ${kind} to start in ${duration(at - now)}${spec.time_limit_s ? `, runs up to ${duration(spec.time_limit_s)}` : ""}`;
  return [{ key: id, kind, from: at, to: spec.time_limit_s ? at + spec.time_limit_s : null, text: spec.name, tip, link: `/jobs/${id}`, between: reason.estimated_between }];
}

/** When the time limit ends a job, Unix seconds. Null: it has none. */
function endOf(job, now) {
  if (!job.spec.time_limit_s) return null;
  return (job.started_at ? Date.parse(job.started_at) / 1000 : now) + job.spec.time_limit_s;
}

/** Host -> a bar for each run of neighbouring GPUs that one job has there, or was promised. */
function barsByHost({ hosts, running, waiting, windows, now }) {
  const found = new Map();
  const add = (host, bar) => found.set(host, [...(found.get(host) ?? []), bar]);
  const sizes = new Map(hosts.map((host) => [host.name, Math.max(1, host.gpus_total)]));
  for (const one of windows) {
    const [from, to] = [one.start_at, one.end_at].map((at) => Date.parse(at) / 1000);
    const what = one.maintenance ? "maintenance" : `reserved for ${[...one.namespaces, ...one.users].join(", ")}`;
    for (const part of one.hosts) {
      for (const [first, many] of part.gpu_indices ? neighbours(part.gpu_indices) : [[0, sizes.get(part.host) ?? 1]]) {
        const tip = `${one.name}, ${what}: ${part.gpu_indices ? count(many, "GPU") : "all"} of ${part.host}, ${span(from, to)}${one.reason ? `: ${one.reason}` : ""}`;
        add(part.host, { key: `${one.name}-window-${first}`, id: null, kind: one.maintenance ? "maintenance" : "reserved", from, to, lane: first, lanes: many, text: many > 2 ? one.name : "", tip });
      }
    }
  }
  for (const job of running) {
    const from = job.started_at ? Date.parse(job.started_at) / 1000 : now;
    const to = endOf(job, now);
    for (const part of job.placement?.slices ?? []) {
      for (const [first, many] of neighbours(part.gpu_indices)) {
        const tip = `${job.spec.name}, ${job.spec.user}: ${count(many, "GPU")} of ${part.host}, ${span(from, to)}`;
        add(part.host, { key: `${job.id}-${first}`, id: job.id, kind: "runs", from, to, lane: first, lanes: many, text: many > 2 ? job.spec.name : "", tip, link: `/jobs/${job.id}` });
      }
    }
  }
  for (const { job_id: id, spec, reason } of waiting) {
    const from = reason?.starts_by;
    const to = from && spec.time_limit_s ? from + spec.time_limit_s : null;
    for (const place of reason?.promised_hosts ?? []) {
      for (const [first, many] of neighbours(place.gpu_indices)) {
        const tip = `${spec.name}, ${spec.user}: promised ${count(many, "GPU")} of ${place.host} in ${duration(from - now)}${to ? `, for up to ${duration(to - from)}` : ""}`;
        add(place.host, { key: `${id}-promise-${first}`, id, kind: "promised", from, to, lane: first, lanes: many, text: many > 2 ? spec.name : "", tip, link: `/jobs/${id}` });
      }
    }
  }
  return found;
}

function neighbours(indices) {
  const runs = [];
  for (const index of [...indices].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[0] + last[1] === index) last[1] += 1;
    else runs.push([index, 1]);
  }
  return runs;
}
