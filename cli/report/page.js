// SPDX-License-Identifier: Apache-2.0
// The report's page: draws the pictures when they come into view, anew when the colour scheme or the width changes. Everything that
// can be read stands in the page already, as text and tables; without this script only the drawings are missing.
(function () {
  "use strict";
  var options = JSON.parse(document.getElementById("options").textContent);
  var scheme = window.matchMedia("(prefers-color-scheme: dark)");
  var charts = {};

  function draw(element) {
    var name = element.getAttribute("data-picture");
    if (charts[name]) charts[name].dispose();
    var chart = echarts.init(element, NcclscopeChart.theme(scheme.matches), { renderer: "canvas" });
    chart.setOption(NcclscopeChart.resolve(JSON.parse(JSON.stringify(options[name])), scheme.matches));
    charts[name] = chart;
    document.documentElement.setAttribute("data-drawn", String(Object.keys(charts).length));
  }

  var places = Array.prototype.slice.call(document.querySelectorAll("[data-picture]"));
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      if (!entry.isIntersecting) return;
      seen.unobserve(entry.target);
      draw(entry.target);
    });
  }, { rootMargin: "400px" });
  places.forEach(function (place) { seen.observe(place); });

  scheme.addEventListener("change", function () {
    places.forEach(function (place) { if (charts[place.getAttribute("data-picture")]) draw(place); });
  });
  window.addEventListener("resize", function () {
    Object.keys(charts).forEach(function (name) { charts[name].resize(); });
  });
  window.addEventListener("beforeprint", function () {
    places.forEach(function (place) { if (!charts[place.getAttribute("data-picture")]) draw(place); });
  });
})();
