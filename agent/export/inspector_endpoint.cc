// SPDX-License-Identifier: Apache-2.0
//
// The families are not of the catalogue: their names are NVIDIA's, and follow other rules than
// ours.
#include "agent/export/inspector_endpoint.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>

#include "agent/export/metrics_endpoint.h"
#include "proto/model/inspector.h"

namespace ncclscope::agent {
namespace {

namespace mi = model::inspector;

constexpr LabelNames kCollectiveLabels = {
    {"version", "cluster", "slurm_job_id", "node", "hostname", "gpu", "comm_name", "n_nodes",
     "nranks", "collective", "message_size", "algo_proto"},
    12};
constexpr LabelNames kTransferLabels = {
    {"version", "cluster", "slurm_job_id", "node", "hostname", "gpu", "comm_name", "n_nodes",
     "nranks", "p2p_operation", "message_size"},
    11};

struct Family {
  MetricDefinition metric;
  bool p2p = false;
  bool bandwidth = false;
};

constexpr MetricDefinition gauge(std::string_view name, const LabelNames& labels,
                                 std::string_view help) {
  MetricDefinition out;
  out.name = name;
  out.type = MetricType::kGauge;
  out.labels = labels;
  out.help = help;
  return out;
}

constexpr std::array kFamilies = {
    Family{gauge(mi::kBusBandwidth, kCollectiveLabels, mi::kBusBandwidthHelp), false, true},
    Family{gauge(mi::kExecutionTime, kCollectiveLabels, mi::kExecutionTimeHelp), false, false},
    Family{gauge(mi::kP2pBusBandwidth, kTransferLabels, mi::kBusBandwidthHelp), true, true},
    Family{gauge(mi::kP2pExecutionTime, kTransferLabels, mi::kExecutionTimeHelp), true, false},
};

constexpr MetricDefinition left_out() {
  MetricDefinition out;
  out.name = "ncclscope_inspector_left_out_operations_total";
  out.type = MetricType::kCounter;
  out.help =
      "Operations that are in no series of this page, because a job, a principal or the agent had "
      "reached its limit of series.";
  return out;
}
constexpr MetricDefinition kLeftOut = left_out();

class NumberText {
 public:
  explicit NumberText(std::uint32_t number)
      : length_(static_cast<std::size_t>(
            std::to_chars(text_.data(), text_.data() + text_.size(), number).ptr - text_.data())) {}
  [[nodiscard]] std::string_view view() const { return {text_.data(), length_}; }

 private:
  std::array<char, 12> text_{};
  std::size_t length_;
};

double value_of(const InspectorRow& row, bool bandwidth) {
  if (!bandwidth) return row.microseconds / static_cast<double>(row.operations);
  if (row.with_bandwidth == 0) return 0;
  return std::exp(row.logarithms / static_cast<double>(row.with_bandwidth));
}

std::string_view or_unknown(const std::string& text) {
  return text.empty() ? mi::kUnknown : std::string_view(text);
}

void write_row(const Snapshot& snapshot, const JobSnapshot& job, const InspectorRow& row,
               const Family& family, TextWriter& writer) {
  const NumberText nnodes(row.nnodes);
  const NumberText nranks(row.nranks);
  const mi::SizeText size = mi::size_text(row.size);
  std::string gpu(mi::kUnknown);
  if (row.gpu >= 0) gpu = "GPU" + std::to_string(row.gpu);
  std::string algorithm(model::name(row.algorithm));
  algorithm.append("_").append(model::name(row.protocol));
  const std::array<std::string_view, kMaxLabels> values = {mi::kPrometheusVersion,
                                                           or_unknown(job.identity.cluster),
                                                           or_unknown(job.identity.job_id),
                                                           snapshot.node,
                                                           snapshot.node,
                                                           gpu,
                                                           row.comm_name,
                                                           nnodes.view(),
                                                           nranks.view(),
                                                           mi::name(row.function),
                                                           size.view(),
                                                           algorithm};
  writer.sample(std::span(values).first(family.metric.labels.size()),
                value_of(row, family.bandwidth));
}

}  // namespace

void write_inspector_page(const Snapshot& snapshot, TextFormat format, ByteSink& sink) {
  TextWriter writer(format, sink);
  for (const Family& family : kFamilies) {
    bool announced = false;
    for (const JobSnapshot& job : snapshot.jobs) {
      if (job.inspector == nullptr) continue;
      for (const InspectorRow& row : *job.inspector) {
        if (model::is_point_to_point(row.function) != family.p2p) continue;
        if (!announced) writer.begin_family(family.metric);
        announced = true;
        write_row(snapshot, job, row, family, writer);
      }
    }
  }
  writer.begin_family(kLeftOut);
  writer.sample({}, snapshot.agent.inspector_left_out);
  writer.finish();
}

HttpResponse InspectorEndpoint::page(const HttpRequest& request) const {
  const SnapshotPtr snapshot = store_.get();
  const TextFormat format = negotiate_format(request.header("Accept"));
  HttpResponse response;
  response.content_type = content_type(format);
  response.headers.emplace_back("Vary", "Accept, Accept-Encoding");
  if (!accepts_gzip(request.header("Accept-Encoding"))) {
    StringSink sink(response.body);
    write_inspector_page(*snapshot, format, sink);
    return response;
  }
  GzipSink sink(response.body);
  write_inspector_page(*snapshot, format, sink);
  if (!sink.finish()) {
    response = {};
    response.status = 503;
    response.body = "Out of memory while compressing the metrics.\n";
    return response;
  }
  response.headers.emplace_back("Content-Encoding", "gzip");
  return response;
}

void InspectorEndpoint::add_to(HttpRouter& router) {
  router.add("/metrics/inspector", [this](const HttpRequest& request) { return page(request); });
}

}  // namespace ncclscope::agent
