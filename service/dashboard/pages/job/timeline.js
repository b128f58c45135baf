/** What happened to a job, in milliseconds: its states as bars, and its events as a list. */
import { useEffect, useRef } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../../api/clock.js";
import { duration, time, words } from "../../parts/format.js";
import { Panel } from "../../parts/page.js";
import { ENDED } from "../../parts/states.js";

/** Event -> the state that begins with it. */
const BEGINS = {
  "job.submitted": "PENDING",
  "job.queued": "QUEUED",
  "job.retrying": "QUEUED",
  "job.placed": "ALLOCATED",
  "job.starting": "STARTING",
  "job.running": "RUNNING",
  "job.preempted": "PREEMPTED",
};
const ENDS = new Set(["job.completed", "job.failed", "job.cancelled", "job.withdrawn"]);
const FAULTS = new Set(["job.failed", "job.fault", "gpu.fault", "host.lost", "job.retrying"]);

/** The panel. */
export function Timeline({ job, events }) {
  const spans = spansOf(events, ENDED.includes(job.state));
  const list = useRef(null);
  useEffect(() => {
    list.current.scrollTop = list.current.scrollHeight;
  }, [events.length]);
  const first = events.length ? Date.parse(events[0].at) : 0;
  return html`<${Panel} title="Timeline">
    <ol class="spans" aria-label="States, one after the other">
      ${spans.map(
        (span, index) => html`<li key=${index} class="span ${span.state}" style=${{ flexGrow: span.weight }}
          title="${words(span.state)}${span.attempt ? `, attempt ${span.attempt}` : ""}: ${duration(span.seconds)}">
          <b>${words(span.state)}</b><span>${duration(span.seconds)}</span></li>`,
      )}
    </ol>
    <div class="scroll tall" ref=${list} tabindex="0" role="group" aria-label="Events, can be scrolled">
      <table class="events sticky">
        <thead><tr><th scope="col">Time</th><th scope="col" class="num">After</th><th scope="col" class="num">Attempt</th><th scope="col">Event</th><th scope="col">What</th><th scope="col">By</th></tr></thead>
        <tbody>${events.map((event, index) => html`<tr key=${event.seq} class=${FAULTS.has(event.kind) ? "fault" : ""}>
          <td class="mono">${time(event.at, { ms: true })}</td>
          <td class="num mono" title="since the submission: ${milliseconds(Date.parse(event.at) - first)}">+${milliseconds(Date.parse(event.at) - Date.parse(events[Math.max(0, index - 1)].at))}</td>
          <td class="num">${event.attempt ?? ""}</td>
          <td class="mono">${event.kind}</td>
          <td class="wide-text">${whatOf(event)}</td>
          <td>${event.actor}</td></tr>`)}</tbody>
      </table>
    </div>
  <//>`;
}

/** The states one after the other. A bar's width grows with the logarithm of its time: milliseconds stay visible. */
function spansOf(events, over) {
  const spans = [];
  let open = null;
  const close = (at) => {
    if (!open) return;
    const seconds = (at - open.since) / 1000;
    if (seconds > 0 || open.state === "RUNNING") spans.push({ ...open, seconds, weight: 1 + Math.log10(1 + Math.max(0, seconds) * 1000) });
    open = null;
  };
  for (const event of events) {
    const at = Date.parse(event.at);
    if (ENDS.has(event.kind)) close(at);
    else if (BEGINS[event.kind] && BEGINS[event.kind] !== open?.state) {
      close(at);
      open = { state: BEGINS[event.kind], since: at, attempt: event.attempt };
    }
  }
  if (!over) close(now());
  return spans;
}

function whatOf({ data, host }) {
  const parts = [];
  if (data.xid) parts.push(`XID ${data.xid}`);
  if (host) parts.push(host);
  const text = data.message ?? data.why ?? data.reason ?? data.failure?.message;
  if (typeof text === "string" && text) parts.push(text);
  else if (data.hosts?.length) parts.push(data.hosts.join(", "));
  if (data.waited_s !== undefined) parts.push(`waited ${duration(data.waited_s)}`);
  if (data.exit_code !== undefined && data.exit_code !== null) parts.push(`exit code ${data.exit_code}`);
  return parts.join(" · ");
}

function milliseconds(ms) {
  return ms < 10_000 ? `${ms} ms` : duration(ms / 1000);
}
