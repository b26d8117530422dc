// The only hand-written script: it sets the theme before the first paint and starts the WebAssembly client.
// It runs in <head>; everything that needs the document waits for DOMContentLoaded.
"use strict";
(() => {
  const root = document.documentElement;
  const wasm = document.currentScript.dataset.wasm;
  const order = ["system", "light", "dark"];

  function stored() {
    try {
      const theme = localStorage.getItem("covey.theme");
      return order.includes(theme) ? theme : "system";
    } catch {
      return "system"; // storage is switched off: follow the system
    }
  }

  function show(theme) {
    if (theme === "system") root.removeAttribute("data-theme");
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      // A button with words of its own keeps them as its name.
      if (!button.textContent.trim()) button.setAttribute("aria-label", "Theme: " + theme + ". Change");
      button.title = "Theme: " + theme;
      button.dataset.state = theme;
    }
  }

  show(stored());

  document.addEventListener("click", (event) => {
    if (!event.target.closest || !event.target.closest("[data-theme-switch]")) return;
    const theme = order[(order.indexOf(stored()) + 1) % order.length];
    try {
      localStorage.setItem("covey.theme", theme);
    } catch {
      // not kept: the choice lasts for this page only
    }
    show(theme);
    document.dispatchEvent(new Event("covey:theme"));
  });

  function fail(text) {
    const bar = document.getElementById("client-failure");
    if (!bar) return;
    bar.querySelector("[data-text]").textContent = text;
    bar.hidden = false;
  }
  window.coveyFail = fail;

  document.addEventListener("DOMContentLoaded", async () => {
    show(stored());
    if (!wasm) return;
    try {
      const go = new Go();
      const { instance } = await WebAssembly.instantiateStreaming(fetch(wasm), go.importObject);
      await go.run(instance);
      fail("The page's client has stopped.");
    } catch (error) {
      fail("The page's client did not start: " + error);
    }
  });
})();
