"use strict";
// Keeps the parts of an open page fresh. Without it, or without news, the page is as it was when it was loaded.
(() => {
  const TRY_AGAIN_MS = 15000;
  const button = document.getElementById("live");
  if (!button || !window.EventSource) return;
  let source = null;
  let timer = 0;

  const show = (text, isOld) => {
    button.textContent = text;
    document.documentElement.classList.toggle("is-old", isOld);
  };

  // What the reader has done to a part outlives its renewal: focus, what is folded out, how far a table is moved.
  const renew = (place, html) => {
    const reachable = () => [...place.querySelectorAll("a, summary, [tabindex]")];
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const at = reachable().indexOf(focused);
    const opened = [...place.querySelectorAll("details[open]")].map((each) => each.id);
    const moved = [...place.querySelectorAll(".grid")].map((each) => [each.id, each.scrollLeft]);
    place.innerHTML = html;
    opened.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    moved.forEach(([id, left]) => {
      const grid = document.getElementById(id);
      if (grid) grid.scrollLeft = left;
    });
    // By its name, so that a button never becomes another row's; what has none, by its place.
    const again = focused?.id ? document.getElementById(focused.id) : reachable()[at];
    again?.focus({ preventScroll: true });
  };

  // Text that is being selected stays.
  const isSelecting = (place) => {
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && place.contains(selection.anchorNode));
  };

  const stop = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };

  const start = () => {
    stop();
    source = new EventSource(`/events?page=${encodeURIComponent(button.dataset.page)}`);
    source.addEventListener("open", () => show("Pause", false));
    source.addEventListener("parts", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) {
        const place = document.getElementById(id);
        if (place && !isSelecting(place)) renew(place, html);
      }
    });
    source.addEventListener("error", () => {
      show("Not live", true);
      // A browser tries again by itself unless it was refused.
      if (source?.readyState === EventSource.CLOSED) timer = setTimeout(start, TRY_AGAIN_MS);
    });
  };

  let isPaused = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    if (isPaused) {
      stop();
      show("Go on", false);
    } else {
      start();
    }
  });
  // A page that nobody looks at takes no place.
  document.addEventListener("visibilitychange", () => {
    if (isPaused) return;
    if (document.hidden) stop();
    else start();
  });
  button.hidden = false;
  if (!document.hidden) start();
})();
