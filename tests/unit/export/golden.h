// SPDX-License-Identifier: Apache-2.0
//
// Compares text with a file of the repository. With NCCLSCOPE_UPDATE_GOLDEN=1 in the environment
// the file is written instead: run the test once, then read the diff.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace ncclscope {

inline void expect_golden(const std::string& path, const std::string& actual) {
  if (std::getenv("NCCLSCOPE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path << " is missing; NCCLSCOPE_UPDATE_GOLDEN=1 writes it";
  std::ostringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << path << " differs; NCCLSCOPE_UPDATE_GOLDEN=1 writes it anew";
}

}  // namespace ncclscope
