// SPDX-License-Identifier: Apache-2.0
//
// Both text formats differ in the family's name, the UNIT line, escaping of HELP and the end mark
// only.
#include "agent/export/text_writer.h"

#include <charconv>
#include <cmath>

#include "agent/export/label_text.h"

namespace ncclscope::agent {
namespace {

void append_help(std::string& out, std::string_view help, bool escape_quotes) {
  for (const char c : help) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && escape_quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

}  // namespace

std::string_view content_type(TextFormat format) noexcept {
  return format == TextFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

TextWriter::TextWriter(TextFormat format, ByteSink& sink) : format_(format), sink_(sink) {
  buffer_.reserve(kFlushBytes + 8 * 1024);
}

void TextWriter::begin_family(const MetricDefinition& metric) {
  metric_ = &metric;
  const bool open_metrics = format_ == TextFormat::kOpenMetrics;
  const std::string_view family = open_metrics ? metric.family() : metric.name;
  buffer_.append("# HELP ").append(family) += ' ';
  append_help(buffer_, metric.help, open_metrics);
  buffer_.append("\n# TYPE ").append(family).append(" ").append(name(metric.type)) += '\n';
  if (open_metrics && !metric.unit.empty())
    buffer_.append("# UNIT ").append(family).append(" ").append(metric.unit) += '\n';

  for (std::size_t i = 0; i < metric.labels.size(); ++i) {
    before_[i].clear();
    if (i > 0) {
      before_[i] += "\",";
    } else if (metric.type != MetricType::kHistogram) {
      before_[i].append(metric.name) += '{';
    }
    before_[i].append(metric.labels[i]).append("=\"");
  }
  last_ = metric.type == MetricType::kHistogram ? "\"" : "\"} ";
}

void TextWriter::append_labels(std::span<const std::string_view> label_values) {
  for (std::size_t i = 0; i < label_values.size(); ++i) {
    buffer_ += before_[i];
    append_escaped(buffer_, label_values[i]);
  }
  if (label_values.empty()) {
    buffer_.append(metric_->name) += ' ';
  } else {
    buffer_ += last_;
  }
}

void TextWriter::append_value(std::uint64_t value) {
  char text[20];
  buffer_.append(
      text, static_cast<std::size_t>(std::to_chars(text, text + sizeof text, value).ptr - text));
}

void TextWriter::append_value(double value) {
  if (!std::isfinite(value)) {
    buffer_ += std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
    return;
  }
  char text[32];
  buffer_.append(
      text, static_cast<std::size_t>(std::to_chars(text, text + sizeof text, value).ptr - text));
}

void TextWriter::end_line() {
  buffer_ += '\n';
  if (buffer_.size() < kFlushBytes) return;
  sink_.write(buffer_);
  buffer_.clear();
}

void TextWriter::sample(std::span<const std::string_view> label_values, std::uint64_t value) {
  append_labels(label_values);
  append_value(value);
  end_line();
}

void TextWriter::sample(std::span<const std::string_view> label_values, double value) {
  append_labels(label_values);
  append_value(value);
  end_line();
}

void TextWriter::histogram(std::span<const std::string_view> label_values,
                           std::span<const std::uint64_t> counts, double sum) {
  histogram_labels_.clear();
  for (std::size_t i = 0; i < label_values.size(); ++i) {
    histogram_labels_ += before_[i];
    append_escaped(histogram_labels_, label_values[i]);
  }
  histogram_labels_ += last_;

  const std::span<const std::string_view> bounds = histogram_bound_labels(metric_->id);
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    buffer_.append(metric_->name).append("_bucket{").append(histogram_labels_).append(",le=\"");
    buffer_.append(i < bounds.size() ? bounds[i] : "+Inf").append("\"} ");
    append_value(cumulative);
    end_line();
  }
  buffer_.append(metric_->name).append("_sum{").append(histogram_labels_).append("} ");
  append_value(sum);
  end_line();
  buffer_.append(metric_->name).append("_count{").append(histogram_labels_).append("} ");
  append_value(cumulative);
  end_line();
}

void TextWriter::finish() {
  if (format_ == TextFormat::kOpenMetrics) buffer_ += "# EOF\n";
  sink_.write(buffer_);
  buffer_.clear();
}

std::string render_text(const Snapshot& snapshot, const SelfStats& self, TextFormat format) {
  std::string out;
  StringSink sink(out);
  TextWriter writer(format, sink);
  visit_metrics(snapshot, self, writer);
  writer.finish();
  return out;
}

}  // namespace ncclscope::agent
