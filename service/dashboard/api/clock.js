/**
 * The time of the service. All times of the API are of its clock, and the clock of this computer may be wrong: "2 min
 * ago" must be true all the same. Each answer says when it was sent (Date, RFC 9110, 6.6.1), in whole seconds.
 */
import { signal } from "@preact/signals";

/** A smaller difference is not one: the header is rounded, and an answer takes a while. */
const TOLERANCE_MS = 5000;
/** An answer that took longer says too little. */
const QUICK_MS = 2000;

/** By how much this computer's clock is ahead of the service's, in milliseconds; 0: as far as one can see not at all. */
export const ahead = signal(0);

/** Unix milliseconds at the service. */
export const now = () => Date.now() - ahead.value;

/** Learn from an answer to a request that was sent at `sentAt`, by this computer's clock. @param {Response} answer */
export function learn(answer, sentAt) {
  const here = Date.now();
  const there = Date.parse(answer.headers.get("Date") ?? "") + 500;
  if (Number.isNaN(there) || here < sentAt || here - sentAt > QUICK_MS) return;
  const found = here - there;
  const next = Math.abs(found) < TOLERANCE_MS ? 0 : found;
  if (Math.abs(next - ahead.value) > TOLERANCE_MS / 2) ahead.value = next;
}
