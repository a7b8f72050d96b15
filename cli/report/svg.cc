// SPDX-License-Identifier: Apache-2.0
#include "cli/report/svg.h"

#include <duktape.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace ncclscope::cli::report {
namespace {

[[noreturn]] void give_up(duk_context* context, const std::string& what) {
  const char* text = duk_safe_to_stacktrace(context, -1);
  std::string why = text == nullptr ? "no reason given" : text;
  duk_pop(context);
  throw DrawingError(what + ": " + why.substr(0, 400));
}

/// What ECharts takes for granted of newer engines. It never draws later: a picture is drawn at
/// once.
constexpr std::string_view kPrelude = R"(
var setTimeout = function () { return 0; }, clearTimeout = function () {}, setInterval = setTimeout, clearInterval = clearTimeout;
[Int8Array, Uint8Array, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array].forEach(function (Type) {
  if (Type.prototype.sort) return;
  Type.prototype.sort = function (order) {
    return Array.prototype.sort.call(this, order || function (a, b) { return a - b; });
  };
});
)";

void evaluate(duk_context* context, std::string_view script, const char* name) {
  duk_push_string(context, name);
  if (duk_pcompile_lstring_filename(context, 0, script.data(), script.size()) != 0)
    give_up(context, std::string(name) + " cannot be compiled");
  if (duk_pcall(context, 0) != DUK_EXEC_SUCCESS)
    give_up(context, std::string(name) + " cannot be run");
  duk_pop(context);
}

}  // namespace

struct SvgRenderer::Context {
  Context() : heap(duk_create_heap_default()) {
    if (heap == nullptr) throw DrawingError("the interpreter cannot be made");
  }
  ~Context() { duk_destroy_heap(heap); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  duk_context* heap;
};

SvgRenderer::SvgRenderer(const DrawingLibrary& library) : context_(std::make_unique<Context>()) {
  evaluate(context_->heap, kPrelude, "prelude");
  evaluate(context_->heap, library.script, "echarts.min.js");
  evaluate(context_->heap, chart_script(), "chart.js");
}

SvgRenderer::~SvgRenderer() = default;

std::string SvgRenderer::render(const nlohmann::ordered_json& option, int width, int height) {
  duk_context* context = context_->heap;
  const std::string json =
      option.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  duk_get_global_string(context, "NcclscopeChart");
  duk_push_string(context, "svg");
  duk_push_lstring(context, json.data(), json.size());
  duk_push_int(context, width);
  duk_push_int(context, height);
  if (duk_pcall_prop(context, -5, 3) != DUK_EXEC_SUCCESS) {
    duk_remove(context, -2);
    give_up(context, "the picture cannot be drawn");
  }
  duk_size_t size = 0;
  const char* text = duk_safe_to_lstring(context, -1, &size);
  std::string out(text, size);
  duk_pop_2(context);
  duk_gc(context, 0);
  return out;
}

}  // namespace ncclscope::cli::report
