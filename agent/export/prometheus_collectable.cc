// SPDX-License-Identifier: Apache-2.0
//
// Samples into prometheus-cpp's structures.
#include "agent/export/prometheus_collectable.h"

#include <limits>
#include <utility>

#include "agent/export/label_text.h"

namespace ncclscope::agent {
namespace {

class FamilySink final : public MetricSink {
 public:
  explicit FamilySink(std::vector<prometheus::MetricFamily>& out) : out_(out) {}

  void begin_family(const MetricDefinition& metric) override {
    metric_ = &metric;
    prometheus::MetricFamily& family = out_.emplace_back();
    family.name = metric.name;
    family.help = metric.help;
    switch (metric.type) {
      case MetricType::kCounter:
        family.type = prometheus::MetricType::Counter;
        break;
      case MetricType::kGauge:
        family.type = prometheus::MetricType::Gauge;
        break;
      case MetricType::kHistogram:
        family.type = prometheus::MetricType::Histogram;
        break;
    }
  }

  void sample(std::span<const std::string_view> label_values, std::uint64_t value) override {
    sample(label_values, static_cast<double>(value));
  }

  void sample(std::span<const std::string_view> label_values, double value) override {
    prometheus::ClientMetric& metric = add(label_values);
    if (metric_->type == MetricType::kCounter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
  }

  void histogram(std::span<const std::string_view> label_values,
                 std::span<const std::uint64_t> counts, double sum) override {
    prometheus::ClientMetric::Histogram& h = add(label_values).histogram;
    const std::span<const double> bounds = histogram_bounds(metric_->id);
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      cumulative += counts[i];
      prometheus::ClientMetric::Bucket& bucket = h.bucket.emplace_back();
      bucket.cumulative_count = cumulative;
      bucket.upper_bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
    }
    h.sample_count = cumulative;
    h.sample_sum = sum;
  }

 private:
  prometheus::ClientMetric& add(std::span<const std::string_view> label_values) {
    prometheus::ClientMetric& metric = out_.back().metric.emplace_back();
    metric.label.reserve(label_values.size());
    for (std::size_t i = 0; i < label_values.size(); ++i) {
      prometheus::ClientMetric::Label& label = metric.label.emplace_back();
      label.name = metric_->labels[i];
      label.value = valid_utf8(label_values[i]);
    }
    return metric;
  }

  std::vector<prometheus::MetricFamily>& out_;
  const MetricDefinition* metric_ = nullptr;
};

}  // namespace

SnapshotCollectable::SnapshotCollectable(std::function<SnapshotPtr()> snapshot,
                                         std::function<SelfStats()> self)
    : snapshot_(std::move(snapshot)), self_(std::move(self)) {}

std::vector<prometheus::MetricFamily> SnapshotCollectable::Collect() const {
  std::vector<prometheus::MetricFamily> out;
  const SnapshotPtr snapshot = snapshot_();
  if (!snapshot) return out;
  FamilySink sink(out);
  visit_metrics(*snapshot, self_(), sink);
  return out;
}

}  // namespace ncclscope::agent
