// Names and values of what a pointer, a finger or the arrow keys are at. Without this script the browser shows them
// as the titles that they are.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll("figure svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  let shown = null;
  const hide = () => {
    if (shown) shown.classList.remove("shown");
    shown = null;
    tip.hidden = true;
  };
  const show = (mark, x, y) => {
    if (shown !== mark) {
      hide();
      shown = mark;
      mark.classList.add("shown");
      tip.textContent = mark.dataset.tip;
      tip.hidden = false;
    }
    const wide = document.documentElement.clientWidth, high = window.innerHeight;
    const below = y + 16 + tip.offsetHeight < high;
    tip.style.left = Math.max(4, Math.min(x + 12, wide - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(4, below ? y + 16 : y - tip.offsetHeight - 12) + "px";
  };
  const at = (event) => {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  };
  document.addEventListener("pointermove", at);
  document.addEventListener("pointerdown", at);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const chart = document.activeElement && document.activeElement.closest(".chart");
    if (event.key === "Escape") hide();
    if (!step || !chart) return;
    const marks = [...chart.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    event.preventDefault();
    const last = marks.indexOf(shown);
    const next = last < 0 ? (step > 0 ? 0 : marks.length - 1) : (last + step + marks.length) % marks.length;
    const inside = chart.getBoundingClientRect();
    let box = marks[next].getBoundingClientRect();
    if (box.right < inside.left || box.left > inside.right) {
      chart.scrollLeft += box.left - inside.left - inside.width / 2;
      box = marks[next].getBoundingClientRect();
    }
    requestAnimationFrame(() => show(marks[next], box.left + box.width / 2, box.top + box.height / 2));
  });
})();
