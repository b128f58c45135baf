/** The key figures of a period, and how they went. */
import { useMemo } from "preact/hooks";
import { html } from "htm/preact";
import { Chart } from "../../parts/chart.js";
import { count, duration, number, percent } from "../../parts/format.js";
import { Panel } from "../../parts/page.js";

/** `report`: the answer of `/v1/report`. */
export function Figures({ report }) {
  const { gpu_time: gpus, jobs, failures } = report;
  const digits = gpus.gpu_hours < 100 ? 2 : 0;
  const facts = [
    ["GPUs allocated", percent(gpus.allocation_ratio), `${number(gpus.allocated_gpu_hours, digits)} of ${number(gpus.gpu_hours, digits)} GPU hours`],
    ["Allocated GPUs busy", gpus.utilization_of_allocated_percent === null ? "–" : `${number(gpus.utilization_of_allocated_percent, 0)} %`, "of attempts that ended"],
    ["Wait for a start", duration(jobs.wait_s.p50), `90 % within ${duration(jobs.wait_s.p90)}`],
    ["Jobs completed", number(jobs.completed), `${number(jobs.submitted)} submitted`],
    ["Success", percent(jobs.success_ratio), `${number(jobs.failed)} failed, ${number(jobs.cancelled)} cancelled`],
    ["Retries", number(jobs.retries), count(jobs.preemptions, "preemption")],
    ["GPU faults", number(failures.gpu_faults), `${count(failures.hosts_lost, "host")} lost`],
    ["Energy", `${number(gpus.energy_kwh, gpus.energy_kwh < 0.1 ? 4 : gpus.energy_kwh < 10 ? 2 : 0)} kWh`, "of attempts that ended"],
  ];
  const { times, allocated, ended } = useMemo(() => course(report.parts), [report]);
  const kinds = Object.entries(jobs.failures);
  return html`<dl class="facts">${facts.map(([name, value, more]) => html`<div key=${name}><dt>${name}</dt><dd>${value}<small>${more}</small></dd></div>`)}</dl>
    <${Panel} title="Course">
      <div class="charts">
        <${Chart} label="GPUs allocated" unit="%" range=${[0, 100]} times=${times} lines=${allocated} />
        <${Chart} label="Jobs" unit="" times=${times} lines=${ended} />
      </div>
      ${kinds.length > 0 && html`<p class="muted small-text">Failed jobs by kind: ${kinds.map(([kind, many]) => `${kind} ${many}`).join(", ")}.</p>`}
    <//>`;
}

function course(parts) {
  return {
    times: parts.map((part) => Date.parse(part.begin) / 1000),
    allocated: [{ name: "allocated", values: parts.map((part) => (part.gpu_hours ? (part.allocated_gpu_hours / part.gpu_hours) * 100 : null)) }],
    ended: ["submitted", "completed", "failed"].map((name) => ({ name, values: parts.map((part) => part[name]) })),
  };
}
