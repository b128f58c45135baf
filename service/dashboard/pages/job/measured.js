/** Utilisation, memory, power and temperature of a job's GPUs over time, from the samples that their hosts keep. */
import { useMemo, useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../../api/clock.js";
import { get } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { readsCluster } from "../../api/session.js";
import { Chart } from "../../parts/chart.js";
import { count, mib, number } from "../../parts/format.js";
import { shareOf } from "../../parts/jobs.js";
import { Empty, Failed, Loading, Panel } from "../../parts/page.js";
import { ENDED } from "../../parts/states.js";

const WINDOWS = { 900: "15 min", 3600: "1 hour", 21600: "6 hours", 86400: "1 day", 604800: "7 days" };
/** Of more GPUs only the mean is drawn: a chart with more lines shows nothing. */
const MOST_LINES = 8;
/** Field, name, unit, factor, range. @type {[string, string, string, number, [number, number]|undefined][]} */
const KINDS = [
  ["utilization_percent", "Utilisation", "%", 1, [0, 100]],
  ["memory_used_mib", "Memory", "GiB", 1 / 1024, undefined],
  ["power_w", "Power", "W", 1, undefined],
  ["temperature_c", "Temperature", "°C", 1, undefined],
];

/** The panel. */
export function Measured({ job }) {
  const [window, setWindow] = useState(() => windowOf(job));
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const over = ENDED.includes(job.state);
  useLoader(
    async () => {
      try {
        setFound(await measure(job, window));
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: over ? 600_000 : 15_000 },
    [job.id, job.attempt, window, over],
  );
  const actions = html`<label>Window <select value=${window} onChange=${(e) => setWindow(Number(e.target.value))}>
      ${Object.entries(WINDOWS).map(([seconds, name]) => html`<option value=${seconds}>${name}</option>`)}</select></label>
    ${found?.all.prometheus_url && html`<a href=${found.all.prometheus_url} rel="noreferrer">Prometheus</a>`}`;
  return html`<${Panel} title="GPUs over time" actions=${actions}>
    <${Failed} problem=${problem} />
    ${!found ? !problem && html`<${Loading} />` : html`<${Charts} found=${found} share=${shareOf(job.spec.gpus)} />`}
  <//>`;
}

/** The shortest window in which all of the job is. */
function windowOf(job) {
  const end = job.finished_at ? Date.parse(job.finished_at) : now();
  const ran = (end - Date.parse(job.created_at)) / 1000;
  return Object.keys(WINDOWS).map(Number).find((seconds) => seconds >= ran) ?? 604_800;
}

function Charts({ found, share }) {
  const drawn = useMemo(() => KINDS.map((kind) => linesOf(found, kind)), [found]);
  const { all } = found;
  if (!all.utilization_percent.count) return html`<${Empty}>Nothing was measured in this window. Samples are means of ${all.sample_s} s.<//>`;
  const missing = Object.entries(all.unmeasured_hosts);
  return html`${share && html`<p class="muted small-text">The job has ${share} of each: these are the figures of whole GPUs, with everybody who shares them.</p>`}
    <div class="charts">${drawn.map((chart) => html`<${Chart} key=${chart.label} ...${chart} />`)}</div>
    <p class="muted small-text">Mean over ${count(all.gpus, "GPU")}: ${number(all.utilization_percent.mean)} % (half of the time at most ${all.utilization_percent.p50} %), ${mib(all.memory_used_mib.mean)}, ${number(all.power_w.mean, 0)} W, ${number(all.temperature_c.mean, 0)} °C.${" "}${missing.length > 0 && `Without ${missing.map(([host, why]) => `${host} (${why})`).join(", ")}.`}</p>`;
}

/** The figures of all GPUs of the job, and of each GPU alone where one may ask for them. */
async function measure(job, window_s) {
  const all = await get(`/v1/jobs/${job.id}/metrics`, { window_s });
  const gpus = job.placement.slices.flatMap((part) => part.gpu_uuids.map((uuid, index) => ({ uuid, name: `${part.host}:${part.gpu_indices[index]}` })));
  const alone = readsCluster.value && !ENDED.includes(job.state) && gpus.length > 1 && gpus.length <= MOST_LINES;
  const single = alone
    ? await Promise.all(gpus.map(async ({ uuid, name }) => ({ name, figures: await get(`/v1/gpus/${uuid}/metrics`, { window_s }).catch(() => null) })))
    : [];
  return { all, single: single.filter((one) => one.figures), from: job.started_at ? Date.parse(job.started_at) / 1000 : 0 };
}

function linesOf({ all, single, from }, [key, label, unit, factor, range]) {
  const end = (point) => Date.parse(point.at) / 1000;
  const scaled = (point) => (point?.mean === null || point?.mean === undefined ? null : point.mean * factor);
  const times = all[key].points.map(end);
  const mean = { name: single.length ? "mean of all" : "mean", values: all[key].points.map(scaled) };
  const lines = single.map(({ name, figures }) => {
    // Of a GPU alone, earlier jobs on it are in the window, too: they are not this job's.
    const at = new Map(figures[key].points.map((point) => [end(point), point]));
    return { name, values: times.map((one) => (one < from ? null : scaled(at.get(one)))) };
  });
  return { label, unit, range, times, lines: [mean, ...lines] };
}
