/** The same job as a line for the command line, and as a file in YAML. */
import { quoted, written } from "./words.js";

/** Field -> the words of its option. What is not here needs a file. */
const OPTIONS = {
  name: (value) => ["--name", value],
  namespace: (value) => ["--namespace", value],
  user: (value) => ["--user", value],
  workdir: (value) => ["--workdir", value],
  env: (value) => Object.entries(value).flatMap(([name, one]) => ["--env", `${name}=${one}`]),
  rank_per: (value) => ["--rank-per", value],
  time_limit_s: (value) => ["--time", written(value)],
  priority: (value) => ["--priority", String(value)],
  kind: (value) => ["--kind", value],
  max_retries: (value) => ["--max-retries", String(value)],
  checkpoints: () => ["--checkpoints"],
  preemptible: () => ["--no-preempt"],
};
const GPU_OPTIONS = {
  model: (value) => ["--gpu-model", value],
  memory_mib: (value) => ["--gpu-memory", `${value}MiB`],
  strategy: (value) => ["--strategy", value],
  cpus_per_host: (value) => ["--cpus", String(value)],
  ram_mib_per_host: (value) => ["--ram", `${value}MiB`],
  required_level: (value) => ["--require", value],
};
/** `gpu-platform submit …`. If no option says a field of it, the line that takes the file. */
export function commandLine(spec) {
  const words = [];
  const { gpus, command, ...fields } = spec;
  const told = (options, values) =>
    Object.entries(values).every(([name, value]) => {
      if (isNothing(value)) return true;
      if (!options[name]) return false;
      words.push(...options[name](value));
      return true;
    });
  const { hosts = 1, gpus_per_host: each = 1, ...rest } = gpus ?? {};
  if (each) words.push(...(hosts === 1 ? ["--gpus", String(each)] : ["--hosts", String(hosts), "--gpus-per-host", String(each)]));
  else if (hosts > 1) words.push("--hosts", String(hosts));
  if (!told(GPU_OPTIONS, rest) || !told(OPTIONS, fields)) return "gpu-platform submit -f job.yaml";
  return ["gpu-platform submit", ...words.map(quoted), "--", ...command.map(quoted)].join(" ");
}

/** The specification as YAML. Texts are quoted as in JSON, which YAML reads alike. */
export function yaml(spec, indent = "") {
  return Object.entries(spec)
    .filter(([, value]) => !isNothing(value))
    .map(([name, value]) => {
      const nested = typeof value === "object" && !Array.isArray(value);
      return nested ? `${indent}${name}:\n${yaml(value, `${indent}  `)}` : `${indent}${name}: ${scalar(value)}\n`;
    })
    .join("");
}

function scalar(value) {
  if (typeof value === "string" && /^[A-Za-z/][\w/.-]*$/.test(value) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(value)) return value;
  return JSON.stringify(value);
}

function isNothing(value) {
  return value === null || (typeof value === "object" && !Object.keys(value).length);
}
