// Runs before the first paint, so that the page does not flash in the other theme. "auto" is what the system says.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is off: the theme is that of the system.
}
