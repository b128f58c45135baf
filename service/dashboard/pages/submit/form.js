/** The fields of the form, and the specification that they mean. What the form has no field for is kept as it was. */
import { quoted, seconds, size, split, written } from "./words.js";

/** An empty form. */
export const EMPTY = {
  name: "", namespace: "", command: "", workdir: "", env: "", hosts: "1", gpus: "1", model: "", memory: "",
  rank_per: "host", require: "", time: "", priority: "", kind: "", retries: "0", checkpoints: false, preemptible: true,
};

/** The form that shows a specification. Values of its environment are hidden: they stay to be filled in. */
export function formOf(spec) {
  const gpus = spec.gpus ?? {};
  return {
    name: spec.name ?? "",
    namespace: spec.namespace ?? "",
    command: spec.command.map(quoted).join(" "),
    workdir: spec.workdir ?? "",
    env: Object.entries(spec.env ?? {}).map(([name, value]) => `${name}=${value === "***" ? "" : value}`).join("\n"),
    hosts: String(gpus.hosts ?? 1),
    gpus: String(gpus.gpus_per_host ?? 1),
    model: gpus.model ?? "",
    memory: gpus.memory_mib ? `${gpus.memory_mib}MiB` : "",
    rank_per: spec.rank_per ?? "host",
    require: gpus.required_level ?? "",
    time: spec.time_limit_s ? written(spec.time_limit_s) : "",
    priority: String(spec.priority ?? ""),
    kind: spec.kind ?? "",
    retries: String(spec.max_retries ?? 0),
    checkpoints: spec.checkpoints ?? false,
    preemptible: spec.preemptible ?? true,
  };
}

/** {spec, errors}: what the form means, on top of `base`; field -> what is wrong with it. */
export function specOf(form, base, hidden = []) {
  const errors = {};
  const read = (field, how) => {
    try {
      return how(form[field]);
    } catch (error) {
      errors[field] = error.message;
      return null;
    }
  };
  const whole = (text, least) => {
    if (!/^\d+$/.test(text.trim()) || Number(text) < least) throw new Error(`must be a whole number, at least ${least}`);
    return Number(text);
  };
  const command = read("command", split) ?? [];
  if (!command.length && !errors.command) errors.command = "is required";
  const env = read("env", (text) => variables(text, hidden)) ?? {};
  const gpus = {
    ...base.gpus,
    hosts: read("hosts", (text) => whole(text, 1)),
    gpus_per_host: read("gpus", (text) => whole(text, 0)),
    model: form.model.trim(),
    memory_mib: read("memory", size),
    required_level: form.require,
  };
  const spec = {
    ...base,
    name: form.name.trim() || nameOf(command),
    namespace: form.namespace.trim(),
    command,
    workdir: form.workdir.trim(),
    env: Object.keys(env).length ? env : null,
    gpus: filled(gpus),
    rank_per: form.rank_per === "host" ? null : form.rank_per,
    time_limit_s: read("time", seconds),
    priority: form.priority.trim() === "" ? null : read("priority", whole0),
    kind: form.kind,
    max_retries: read("retries", (text) => whole(text, 0)) || null,
    checkpoints: form.checkpoints || null,
    preemptible: form.preemptible ? null : false,
  };
  return { spec: filled(spec), errors };
}

function whole0(text) {
  if (!/^-?\d+$/.test(text.trim())) throw new Error("must be a whole number from -1000 to 1000");
  return Number(text);
}

function variables(text, hidden) {
  const found = {};
  for (const line of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${line}: write NAME=VALUE, one on each line`);
    found[line.slice(0, at)] = line.slice(at + 1);
  }
  const missing = hidden.filter((name) => found[name] === "");
  if (missing.length) throw new Error(`values are shown to nobody: fill in ${missing.join(", ")}`);
  return found;
}

/** As the command line names a job: by its program. */
function nameOf(command) {
  const name = (command[0] ?? "").split("/").pop().replace(/[^A-Za-z0-9._-]/g, "-").slice(0, 63);
  return /^[A-Za-z0-9]/.test(name) ? name : "job";
}

function filled(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}
