/** Draw a long list in pieces, one for each frame, so that the page answers while it is drawn. */
import { useEffect, useState } from "preact/hooks";

/** How many of `total` items to draw now: `step` more with each frame. */
export function useGrowing(total, step = 24) {
  const [drawn, setDrawn] = useState(step);
  useEffect(() => {
    if (drawn >= total) return undefined;
    const next = () => setDrawn((before) => Math.min(total, before + step));
    // A hidden tab draws no frames.
    const frame = requestAnimationFrame(next);
    return () => cancelAnimationFrame(frame);
  }, [drawn, total]);
  return Math.min(drawn, total);
}
