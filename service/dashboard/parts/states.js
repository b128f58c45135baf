/** States of GPUs, hosts and jobs: each has a word and a letter beside its colour. */
import { html } from "htm/preact";
import { words } from "./format.js";

/** GPU state -> letter of its cell, and what the legend says. */
export const GPU_STATES = {
  AVAILABLE: ["A", "available"],
  ALLOCATED: ["L", "allocated: its ranks do not run yet"],
  IN_USE: ["U", "in use"],
  DRAINING: ["G", "draining: no new work"],
  DRAINED: ["D", "drained"],
  DEGRADED: ["F", "degraded: a fault was seen"],
  RESETTING: ["R", "resetting"],
  OFFLINE: ["O", "offline"],
  LOST: ["?", "its host is lost"],
};

/** The state that a GPU's cell shows: that of a lost host hides its own. */
export const shownState = (gpu) => (gpu.host_state === "LOST" ? "LOST" : gpu.state);

const KIND = {
  PENDING: "idle",
  QUEUED: "wait",
  ALLOCATED: "start",
  STARTING: "start",
  RUNNING: "run",
  COMPLETED: "good",
  FAILED: "bad",
  CANCELLED: "idle",
  PREEMPTED: "wait",
  READY: "good",
  DRAINING: "wait",
  DRAINED: "wait",
  LOST: "bad",
  AVAILABLE: "idle",
  IN_USE: "run",
  DEGRADED: "bad",
  RESETTING: "wait",
  OFFLINE: "bad",
};

/** The states in which a job never changes again. */
export const ENDED = ["COMPLETED", "FAILED", "CANCELLED"];
/** The states in which a job holds GPUs. */
export const HOLDING = ["ALLOCATED", "STARTING", "RUNNING"];

/** The state of a job, a host or a GPU, as a small label. */
export function State({ of }) {
  return html`<span class="state ${KIND[of] ?? "idle"}">${words(of)}</span>`;
}
