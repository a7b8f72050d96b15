// SPDX-License-Identifier: Apache-2.0
#include "agent/export/text_writer.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <zlib.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <sstream>

#include "agent/export/prometheus_collectable.h"
#include "tests/unit/export/golden.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

/// Spells `le` shortly: the library writes 0.00064000000000000005.
std::string with_short_bound(std::string series) {
  const std::size_t begin = series.find("le=\"");
  if (begin == std::string::npos || series[begin + 4] == '+') return series;
  const std::size_t end = series.find('"', begin + 4);
  char text[32];
  const auto result =
      std::to_chars(text, text + sizeof text, std::strtod(series.c_str() + begin + 4, nullptr));
  return series.replace(begin + 4, end - begin - 4, text,
                        static_cast<std::size_t>(result.ptr - text));
}

/// "name{labels}" -> value of every sample line.
std::map<std::string, double> samples_of(const std::string& text) {
  std::map<std::string, double> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    const bool fresh = out.emplace(with_short_bound(line.substr(0, space)),
                                   std::strtod(line.c_str() + space + 1, nullptr))
                           .second;
    EXPECT_TRUE(fresh) << "twice: " << line;
  }
  return out;
}

std::string inflate_gzip(const std::string& bytes) {
  z_stream z{};
  EXPECT_EQ(inflateInit2(&z, 15 + 16), Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int result = Z_OK;
  while (result == Z_OK) {
    char part[4096];
    z.next_out = reinterpret_cast<Bytef*>(part);
    z.avail_out = sizeof part;
    result = inflate(&z, Z_NO_FLUSH);
    out.append(part, sizeof part - z.avail_out);
  }
  EXPECT_EQ(result, Z_STREAM_END);
  EXPECT_EQ(z.avail_in, 0u);
  inflateEnd(&z);
  return out;
}

TEST(TextWriter, WritesTheGoldenPrometheusText) {
  expect_golden(NCCLSCOPE_SOURCE_DIR "/tests/data/golden/metrics.prom",
                render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus));
}

TEST(TextWriter, WritesTheGoldenOpenMetrics) {
  expect_golden(NCCLSCOPE_SOURCE_DIR "/tests/data/golden/metrics.openmetrics",
                render_text(golden_snapshot(), golden_self(), TextFormat::kOpenMetrics));
}

TEST(TextWriter, GoldenSnapshotShowsEveryMetricOfTheCatalogue) {
  const std::string text = render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus);
  for (const MetricDefinition& m : catalogue())
    EXPECT_NE(text.find("# TYPE " + std::string(m.name) + " "), std::string::npos)
        << m.name << " is not covered";
}

TEST(TextWriter, BothFormatsCarryTheSameSeries) {
  const auto prometheus =
      samples_of(render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus));
  const auto open_metrics =
      samples_of(render_text(golden_snapshot(), golden_self(), TextFormat::kOpenMetrics));
  EXPECT_EQ(prometheus, open_metrics);
  EXPECT_GT(prometheus.size(), 100u);
}

TEST(TextWriter, EveryJobSeriesHasClusterAndJob) {
  for (const auto& [series, value] :
       samples_of(render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus)))
    EXPECT_TRUE(series.starts_with("ncclscope_agent_") ||
                series.find("{cluster=\"") != std::string::npos)
        << series;
}

TEST(TextWriter, OnlyOpenMetricsHasUnitsAndAnEnd) {
  const std::string prometheus =
      render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus);
  const std::string open_metrics =
      render_text(golden_snapshot(), golden_self(), TextFormat::kOpenMetrics);
  EXPECT_EQ(prometheus.find("# UNIT"), std::string::npos);
  EXPECT_EQ(prometheus.find("# EOF"), std::string::npos);
  EXPECT_NE(open_metrics.find("# UNIT ncclscope_collective_bus_bytes bytes\n"), std::string::npos);
  EXPECT_TRUE(open_metrics.ends_with("\n# EOF\n"));
}

TEST(TextWriter, EmptySnapshotShowsTheAgentOnly) {
  const auto samples = samples_of(render_text(Snapshot{}, golden_self(), TextFormat::kPrometheus));
  for (const auto& [series, value] : samples)
    EXPECT_TRUE(series.starts_with("ncclscope_agent_")) << series;
  EXPECT_EQ(samples.at("ncclscope_agent_series"), 0);
}

TEST(TextWriter, CountsTheSeriesItWrites) {
  const auto samples =
      samples_of(render_text(golden_snapshot(), golden_self(), TextFormat::kPrometheus));
  std::size_t of_jobs = 0;
  for (const auto& [series, value] : samples)
    of_jobs += series.starts_with("ncclscope_agent_") ? 0u : 1u;
  EXPECT_EQ(samples.at("ncclscope_agent_series"), static_cast<double>(of_jobs));
}

TEST(TextWriter, WritesNumbersAsPrometheusReadsThem) {
  std::string out;
  StringSink sink(out);
  TextWriter writer(TextFormat::kPrometheus, sink);
  writer.begin_family(definition(Metric::kAgentStartTime));
  out.clear();
  for (const double value :
       {0.0, 1.0, 0.1, 1e300, std::numeric_limits<double>::quiet_NaN(),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
    writer.sample({}, value);
  writer.sample({}, std::numeric_limits<std::uint64_t>::max());
  writer.finish();
  const std::string name = "ncclscope_agent_start_time_seconds ";
  std::string expected;
  for (const char* value :
       {"0", "1", "0.1", "1e+300", "NaN", "+Inf", "-Inf", "18446744073709551615"})
    expected += name + value + "\n";
  EXPECT_TRUE(out.ends_with(expected)) << out;
}

TEST(TextWriter, LargeExpositionsComeOutWholeInPieces) {
  const Snapshot snapshot = large_snapshot(3'000);
  std::string compressed;
  GzipSink gzip(compressed);
  TextWriter writer(TextFormat::kOpenMetrics, gzip);
  const VisitCounts counts = visit_metrics(snapshot, golden_self(), writer);
  writer.finish();
  ASSERT_TRUE(gzip.finish());
  const std::string plain = render_text(snapshot, golden_self(), TextFormat::kOpenMetrics);
  EXPECT_EQ(inflate_gzip(compressed), plain);
  EXPECT_EQ(samples_of(plain).size(), counts.job_series + counts.agent_series);
  EXPECT_GT(plain.size(), 5u * 64 * 1024);
}

TEST(GzipSink, MakesAValidEmptyStream) {
  std::string out;
  GzipSink gzip(out);
  ASSERT_TRUE(gzip.finish());
  EXPECT_EQ(inflate_gzip(out), "");
}

TEST(SnapshotCollectable, CarriesTheSameSeriesAsTheText) {
  const auto snapshot = std::make_shared<const Snapshot>(golden_snapshot());
  const SnapshotCollectable collectable([&] { return snapshot; }, golden_self);
  const std::vector<prometheus::MetricFamily> families = collectable.Collect();
  const auto from_library = samples_of(prometheus::TextSerializer().Serialize(families));
  const auto ours = samples_of(render_text(*snapshot, golden_self(), TextFormat::kPrometheus));
  EXPECT_EQ(from_library.size(), ours.size());
  for (const auto& [series, value] : ours) {
    const auto it = from_library.find(series);
    if (it == from_library.end()) {
      ADD_FAILURE() << series << " is missing in the library's text";
    } else {
      EXPECT_DOUBLE_EQ(it->second, value) << series;
    }
  }
}

TEST(SnapshotCollectable, NamesTypesAndHelpAreTheCatalogues) {
  const auto snapshot = std::make_shared<const Snapshot>(golden_snapshot());
  const std::vector<prometheus::MetricFamily> families =
      SnapshotCollectable([&] { return snapshot; }, golden_self).Collect();
  ASSERT_EQ(families.size(), kMetricCount);
  for (std::size_t i = 0; i < kMetricCount; ++i) {
    EXPECT_EQ(families[i].name, catalogue()[i].name);
    EXPECT_EQ(families[i].help, catalogue()[i].help);
  }
}

}  // namespace
}  // namespace ncclscope::agent
