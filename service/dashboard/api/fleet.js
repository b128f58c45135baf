/**
 * All hosts with their GPUs, kept up to date.
 *
 * Of a large cluster each full look is some megabytes, so it is shown page by page, and seldom repeated. In between
 * only those hosts are asked for again of which an event tells. A host that did not change keeps its object, so that its
 * card is not drawn again.
 */
import { signal } from "@preact/signals";
import { get, getAll } from "./http.js";

/** Host name -> {host, gpus}. Replaced as a whole when something changed. */
export const fleet = signal(new Map());
/** True once all hosts and GPUs were read. */
export const complete = signal(false);
/** Job id -> its name, of jobs that hold GPUs: at most the newest 1,000. */
export const holders = signal(new Map());

/** Of how many hosts at most one asks singly. If more have changed, all are asked for. */
const FEW = 12;
const HOLDING = ["ALLOCATED", "STARTING", "RUNNING"];
/** Events of jobs after which their GPUs have another state. */
const OF_HOLDERS = new Set(["job.running", "job.starting", "job.preempted", "gang.released"]);
const changed = new Set();
/** Job -> its hosts, of jobs that were placed while this page was open. */
const placed = new Map();

/** Remember which hosts an event is about: those that it names, and those where its job holds GPUs. True if any. */
export function note(event) {
  const names = [event.host, ...(event.data?.hosts ?? [])].filter(Boolean);
  if (event.kind === "job.placed") placed.set(event.job_id, names);
  if (OF_HOLDERS.has(event.kind)) names.push(...(placed.get(event.job_id) ?? []), ...hostsOf(event.job_id));
  if (event.kind === "gang.released") placed.delete(event.job_id);
  names.forEach((name) => changed.add(name));
  return names.length > 0;
}

/** Look at the hosts that have changed, or at all. `everything`: at all in any case. */
export async function look(everything) {
  if (!everything && complete.value && changed.size && changed.size <= FEW) {
    const names = [...changed];
    changed.clear();
    const found = await Promise.all(names.map(one));
    put(found.filter(Boolean));
    if (found.includes(null)) drop(names.filter((_, index) => found[index] === null));
    return;
  }
  changed.clear();
  await Promise.all([all(), names()]);
}

/** Forget everything: the next person in this tab may see less. */
export function forgetFleet() {
  fleet.value = new Map();
  holders.value = new Map();
  complete.value = false;
  changed.clear();
  placed.clear();
}

async function one(name) {
  try {
    const [host, page] = await Promise.all([get(`/v1/hosts/${encodeURIComponent(name)}`), get("/v1/gpus", { host: name })]);
    return { host, gpus: page.items };
  } catch (problem) {
    if (problem.status === 404) return null;
    throw problem;
  }
}

async function all() {
  const first = !complete.value;
  const hosts = new Map();
  const byHost = new Map();
  const show = () => first && put([...hosts.values()].map((host) => ({ host, gpus: byHost.get(host.name) ?? [] })));
  await Promise.all([
    getAll("/v1/hosts", { limit: first ? 200 : 1000 }, (page) => {
      page.forEach((host) => hosts.set(host.name, host));
      show();
    }),
    getAll("/v1/gpus", { limit: 1000 }, (page) => {
      for (const gpu of page) {
        const found = byHost.get(gpu.host);
        if (found) found.push(gpu);
        else byHost.set(gpu.host, [gpu]);
      }
      show();
    }),
  ]);
  put([...hosts.values()].map((host) => ({ host, gpus: byHost.get(host.name) ?? [] })));
  drop([...fleet.value.keys()].filter((name) => !hosts.has(name)));
  complete.value = true;
}

async function names() {
  const page = await get("/v1/jobs", { state: HOLDING, limit: 1000 });
  holders.value = new Map(page.items.map((job) => [job.id, job.spec.name]));
}

function put(found) {
  let next = null;
  for (const entry of found) {
    const before = fleet.value.get(entry.host.name);
    if (before && isSame(before, entry)) continue;
    next ??= new Map(fleet.value);
    next.set(entry.host.name, entry);
  }
  if (next) fleet.value = next;
}

function drop(names) {
  if (!names.length) return;
  const next = new Map(fleet.value);
  names.forEach((name) => next.delete(name));
  fleet.value = next;
}

/** Nothing that a card shows differs. */
function isSame(one, other) {
  const [a, b] = [one.host, other.host];
  if (a.state !== b.state || a.reason !== b.reason || a.leaf !== b.leaf || a.spine !== b.spine) return false;
  if (a.gpus_free !== b.gpus_free || a.nvlink_domain !== b.nvlink_domain || one.gpus.length !== other.gpus.length) return false;
  return one.gpus.every((gpu, index) => isSameGpu(gpu, other.gpus[index]));
}

function isSameGpu(a, b) {
  return (
    a.state === b.state &&
    a.host_state === b.host_state &&
    a.job_id === b.job_id &&
    a.reason === b.reason &&
    a.holders.length === b.holders.length &&
    a.utilization_percent === b.utilization_percent &&
    a.temperature_c === b.temperature_c &&
    a.info.uuid === b.info.uuid
  );
}

function hostsOf(jobId) {
  const holds = ({ gpus }) => gpus.some((gpu) => gpu.holders.some((holder) => holder.job_id === jobId));
  return [...fleet.value].filter(([, entry]) => holds(entry)).map(([name]) => name);
}
