// SPDX-License-Identifier: Apache-2.0
// Release numbers of NCCL: see release.h.
#include "sim/release.h"

#include <array>
#include <cstdio>

namespace ncclscope::sim {
namespace {
struct Line {
  int minor;
  int last_patch;
};
// The last patch of each line that the emulator knows.
constexpr std::array<Line, 10> kLines = {
    {{23, 4}, {24, 3}, {25, 1}, {26, 6}, {27, 7}, {28, 9}, {29, 7}, {30, 7}, {31, 2}, {32, 1}}};
}  // namespace

std::string Release::text() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

int Release::native_interface() const {
  if (minor <= 23) return 1;
  if (minor <= 25) return 2;
  if (minor == 26) return 3;
  if (minor == 27) return 4;
  if (minor == 28) return 5;
  if (minor <= 30) return 6;
  return 7;
}

Release parse_release(const std::string& text, std::string* error) {
  Release release;
  int used = 0;
  // NOLINTNEXTLINE(cert-err34-c): the number of fields and of characters used is checked
  const int fields = std::sscanf(text.c_str(), "%d.%d%n.%d%n", &release.major, &release.minor,
                                 &used, &release.patch, &used);
  if (fields < 2 || static_cast<std::size_t>(used) != text.size()) {
    *error = "NCCL release \"" + text + "\" is not of the form 2.28 or 2.28.9";
    return {};
  }
  for (const Line& line : kLines) {
    if (release.major != 2 || line.minor != release.minor) continue;
    if (fields == 2) release.patch = line.last_patch;
    error->clear();
    return release;
  }
  *error = "NCCL release \"" + text + "\" is not emulated: 2.23 to 2.32 are";
  return {};
}

}  // namespace ncclscope::sim
