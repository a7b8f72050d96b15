// SPDX-License-Identifier: Apache-2.0
#include "agent/export/catalogue.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "agent/aggregate/snapshot.h"
#include "tests/unit/export/golden.h"

namespace ncclscope::agent {
namespace {

TEST(Catalogue, HasUniqueNamesAndFamilies) {
  std::set<std::string_view> names;
  std::set<std::string_view> families;
  for (const MetricDefinition& m : catalogue()) {
    EXPECT_TRUE(names.insert(m.name).second) << m.name;
    EXPECT_TRUE(families.insert(m.family()).second) << m.family();
  }
  EXPECT_EQ(names.size(), kMetricCount);
}

TEST(Catalogue, UsesNoLabelThatBelongsToTheScraper) {
  for (const MetricDefinition& m : catalogue()) {
    std::set<std::string_view> seen;
    for (const std::string_view label : m.labels) {
      EXPECT_NE(label, "job") << m.name;
      EXPECT_NE(label, "instance") << m.name;
      EXPECT_NE(label, "le") << m.name;
      EXPECT_TRUE(seen.insert(label).second) << m.name << " has " << label << " twice";
    }
  }
}

TEST(Catalogue, HelpEndsWithAFullStopAndNeedsNoEscaping) {
  for (const MetricDefinition& m : catalogue()) {
    EXPECT_TRUE(m.help.ends_with(".")) << m.name;
    EXPECT_EQ(m.help.find_first_of("\\\"\n|"), std::string_view::npos) << m.name;
  }
}

TEST(Catalogue, DurationBoundsAreTenMicrosecondsTimesPowersOfFour) {
  double expected = 10e-6;
  ASSERT_EQ(duration_bounds().size(), kDurationBounds);
  for (std::size_t i = 0; i < kDurationBounds; ++i, expected *= 4) {
    EXPECT_NEAR(duration_bounds()[i], expected, expected * 1e-12);
    EXPECT_EQ(std::strtod(std::string(duration_bound_labels()[i]).c_str(), nullptr),
              duration_bounds()[i]);
  }
}

TEST(Catalogue, ReferenceDocumentIsCurrent) {
  expect_golden(NCCLSCOPE_SOURCE_DIR "/docs/metrics.md", metrics_reference());
}

}  // namespace
}  // namespace ncclscope::agent
