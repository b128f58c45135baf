/** What several pages need to know of a job. */
import { now } from "../api/clock.js";

/** GPUs of the whole gang. */
export function gpusOf(spec) {
  const of = (request) => request.total ?? request.hosts * request.gpus_per_host;
  return spec.groups?.length ? spec.groups.reduce((sum, group) => sum + of(group.gpus), 0) : of(spec.gpus);
}

/** GPUs of the whole gang for a table: "16", "1 × 1g.10gb" if the job asks for a share of each, "–" without GPUs. */
export function gpusText(spec) {
  const share = shareOf(spec.gpus);
  return share && gpusOf(spec) ? `${gpusOf(spec)} × ${share}` : gpusOf(spec) || "–";
}

/** "1g.10gb", "30 %": the share that is asked for, or given. null: the whole GPU. */
export function shareOf({ share }) {
  return share ? (share.mig_profile ?? `${share.percent} %`) : null;
}

/** "2 hosts × 8 GPUs", "4 GPUs", "1g.10gb of 1 GPU", "CPUs only". */
export function shapeOf(spec) {
  if (spec.groups?.length) return spec.groups.map((group) => `${group.name}: ${shapeOf({ gpus: group.gpus })}`).join(", ");
  const { hosts, gpus_per_host: each, total } = spec.gpus;
  if (total) return `${total} GPUs on as few hosts as possible`;
  if (!each) return hosts === 1 ? "CPUs only" : `${hosts} hosts, CPUs only`;
  const share = shareOf(spec.gpus);
  const gpus = `${share ? `${share} of ` : ""}${each} GPU${each === 1 ? "" : "s"}`;
  return hosts === 1 ? gpus : `${hosts} hosts × ${gpus}`;
}

/** Numbers as ranges: "0-3,6". */
export function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const found = [];
  for (const one of sorted) {
    const last = found.at(-1);
    if (last && last[1] === one - 1) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(",");
}

/** How many ranks a job has. */
export function ranksOf(job) {
  const { spec, placement } = job;
  if (!placement) {
    const of = (gpus, per) => gpus.hosts * (per === "gpu" ? gpus.gpus_per_host : 1);
    if (spec.groups?.length) return spec.groups.reduce((sum, group) => sum + of(group.gpus, group.rank_per), 0);
    return Math.max(1, of(spec.gpus, spec.rank_per));
  }
  const perGpu = Object.fromEntries(spec.groups.map((group) => [group.name, group.rank_per === "gpu"]));
  const slices = spec.spare_hosts ? placement.slices.slice(0, spec.gpus.hosts) : placement.slices;
  return slices.reduce((sum, part) => {
    const each = part.group ? perGpu[part.group] : spec.rank_per === "gpu";
    return sum + (each ? part.gpu_uuids.length : 1);
  }, 0);
}

/** The specification as one submits it again: without what belongs to this job alone. Null values are left out. */
export function againOf(spec, me) {
  const copy = structuredClone(spec);
  if (copy.user === me?.name || copy.user === "anonymous") delete copy.user;
  delete copy.artifacts;
  // 0 is what every job with GPUs has; one without GPUs has one at least.
  for (const part of [copy, ...(copy.groups ?? [])]) if (part.gpus?.cpus_per_host === 0) delete part.gpus.cpus_per_host;
  if (copy.begin_at && Date.parse(copy.begin_at) < now()) delete copy.begin_at;
  return dense(copy, DEFAULTS);
}

/** What means the same as nothing. Priority and strategy do not: without them the kind of work says others. */
const DEFAULTS = {
  spare_hosts: 0, keep_reservation_s: 0, warn_before_s: 0, warn_signal: "USR1", max_hardware_retries: 16, max_retries: 0, grace_s: 10,
  preemptible: true, checkpoints: false, rank_per: "host", ram_mib_per_host: 0, memory_mib: 0, allow_cross_numa: false,
};

function dense(value, defaults) {
  if (Array.isArray(value)) return value.map((one) => dense(one, defaults));
  if (value === null || typeof value !== "object") return value;
  const said = ([name, one]) => one !== null && defaults[name] !== one && !(typeof one === "object" && !Object.keys(one).length);
  return Object.fromEntries(
    Object.entries(value)
      .map(([name, one]) => [name, dense(one, defaults)])
      .filter(said),
  );
}
