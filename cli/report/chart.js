// SPDX-License-Identifier: Apache-2.0
// Turns the report's options, which are plain JSON, into what ECharts takes, in light and dark. Runs in browsers and in the
// interpreter that draws the SVG files, so it is ECMAScript 5. Names in options come from tenants: they are only ever shown as text.
var NcclscopeChart = (function () {
  "use strict";

  function scaled(value, base, names) {
    var size = Math.abs(value), i = 0;
    while (size >= base && i < names.length - 1) { size /= base; value /= base; ++i; }
    return [value, names[i]];
  }
  function digits(x) { return String(Number(x.toPrecision(3))); }
  function two(x) { return (x < 10 ? "0" : "") + x; }

  var formats = {
    bytes: function (v) {
      v = Number(v);
      var s = scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
      return digits(s[0]) + " " + s[1];
    },
    bandwidth: function (v) {
      var s = scaled(Number(v), 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
      return digits(s[0]) + " " + s[1];
    },
    count: function (v) {
      var s = scaled(Number(v), 1000, ["", " k", " M", " G"]);
      return digits(s[0]) + s[1];
    },
    seconds: function (v) {
      v = Number(v);
      var size = Math.abs(v);
      if (size === 0) return "0";
      if (size < 1e-6) return digits(v * 1e9) + " ns";
      if (size < 1e-3) return digits(v * 1e6) + " \u00b5s";
      if (size < 1) return digits(v * 1e3) + " ms";
      if (size < 120) return digits(v) + " s";
      return digits(v / 60) + " min";
    },
    share: function (v) { return digits(Number(v) * 100) + " %"; },
    number: function (v) { return digits(Number(v)); },
    clock: function (v) {
      var t = new Date(Number(v));
      return two(t.getUTCHours()) + ":" + two(t.getUTCMinutes()) + ":" + two(t.getUTCSeconds());
    }
  };

  function escaped(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  }
  function line(name, value) { return escaped(name) + ": " + escaped(value); }

  // What is shown at a pointer. Each is made from the words behind its name.
  var makers = {
    point: function () {
      var of = { "message size": "bytes", "bus bandwidth": "bandwidth", "operations": "count", "step time": "seconds",
        "communication": "share", "throughput": "number" };
      return function (p) {
        var out = [escaped(p.seriesName)];
        for (var i = 0; i < p.value.length; ++i) {
          var name = p.dimensionNames[i];
          if (of[name]) out.push(line(name, formats[of[name]](p.value[i])));
        }
        return out.join("<br>");
      };
    },
    bin: function (format) {
      return function (p) { return escaped(p.seriesName) + "<br>" + line("from " + formats[format](p.name), p.value + " operations"); };
    },
    box: function (format) {
      var names = ["5th percentile", "25th", "median", "75th", "95th"];
      return function (p) {
        var out = [escaped(p.name)];
        for (var i = 0; i < names.length; ++i) out.push(line(names[i], formats[format](p.value[i + 1])));
        return out.join("<br>");
      };
    },
    bar: function (format) { return function (p) { return line(p.name, formats[format](p.value)); }; },
    heat: function (format) { return function (p) { return line(p.seriesName, formats[format](p.value[2])); }; },
    symbol: function (most) {
      return function (value) { return 4 + 14 * Math.log(1 + value[2]) / Math.log(1 + Number(most)); };
    }
  };

  function named(text, dark) {
    if (text === "heat-colours") return dark ? ["#20303f", "#7a3b8f", "#f2b45c"] : ["#eef2f6", "#d9844a", "#8a0f0f"];
    if (formats[text]) return formats[text];
    var colon = text.indexOf(":"), name = colon < 0 ? text : text.substr(0, colon);
    if (makers[name]) return makers[name](colon < 0 ? "" : text.substr(colon + 1));
    throw new Error("chart.js knows no '" + text + "'");
  }
  // Only these members may name a function: data may hold any text.
  var naming = { formatter: true, valueFormatter: true, symbolSize: true, color: true };
  function resolve(node, dark) {
    if (node instanceof Array) {
      for (var i = 0; i < node.length; ++i) if (typeof node[i] === "object" && node[i] !== null) resolve(node[i], dark);
      return node;
    }
    for (var key in node) {
      if (!Object.prototype.hasOwnProperty.call(node, key) || node[key] === null) continue;
      if (naming[key] && typeof node[key] === "string" && node[key].charAt(0) === "@") node[key] = named(node[key].substr(1), dark);
      else if (typeof node[key] === "object" && key !== "data") resolve(node[key], dark);
    }
    return node;
  }

  function theme(dark) {
    var text = dark ? "#e6ebf0" : "#1b2430", quiet = dark ? "#a3b0bd" : "#55616f", split = dark ? "#2a343f" : "#e3e8ed";
    var axis = {
      nameTextStyle: { color: quiet }, axisLine: { lineStyle: { color: quiet } }, axisTick: { lineStyle: { color: quiet } },
      axisLabel: { color: quiet }, splitLine: { lineStyle: { color: [split] } }
    };
    return {
      // Okabe and Ito's colours, which people with colour blindness tell apart; darker in light.
      color: dark ? ["#56b4e9", "#e69f00", "#2fc69c", "#cc79a7", "#f0e442", "#e8743b"]
        : ["#0b6bb0", "#b36b00", "#00805c", "#a8487b", "#6b6200", "#c44a00"],
      backgroundColor: "transparent",
      textStyle: { color: text, fontFamily: "system-ui, 'Liberation Sans', sans-serif" },
      legend: { textStyle: { color: text }, pageTextStyle: { color: text } },
      tooltip: { backgroundColor: dark ? "#1b222b" : "#ffffff", borderColor: quiet, textStyle: { color: text } },
      visualMap: { textStyle: { color: text } },
      boxplot: { itemStyle: { color: dark ? "#24323f" : "#dbe7f3", borderColor: dark ? "#56b4e9" : "#0b6bb0" } },
      categoryAxis: axis, valueAxis: axis, logAxis: axis, timeAxis: axis
    };
  }

  return {
    resolve: resolve,
    theme: theme,
    // A picture as a file: light, on white.
    svg: function (json, width, height) {
      var chart = echarts.init(null, theme(false), { renderer: "svg", ssr: true, width: width, height: height });
      var option = resolve(JSON.parse(json), false);
      option.backgroundColor = "#ffffff";
      chart.setOption(option);
      var text = chart.renderToSVGString();
      chart.dispose();
      return text;
    }
  };
})();
