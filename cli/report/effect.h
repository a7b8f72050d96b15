// SPDX-License-Identifier: Apache-2.0
//
// How much one run differs from another, robustly, and how sure that is. Pure.
//   Samples are means of blocks of time, so that operations that disturb each other do not count as
//   many. With a, b the natural logarithms of the blocks' values:
//     ratio     exp(median b - median a)
//     interval  exp(median b - median a +- t * s), s^2 = s_a^2 + s_b^2, s_x = 1.2533 * 1.4826 *
//               median |x - median x| / sqrt(number of x): the standard error of a median, from the
//               median absolute deviation; t of Student, 99.9 %, with all blocks less two
//     delta     Cliff's: share of pairs (a, b) with b > a, less those with b < a; from -1 to 1
#pragma once

#include <cstddef>
#include <vector>

namespace ncclscope::cli::report {

struct Effect {
  std::size_t blocks_a = 0, blocks_b = 0;
  double a = 0, b = 0;  // medians of the blocks
  double ratio = 1, low = 1, high = 1;
  double delta = 0;

  /// Enough blocks on both sides to say anything.
  [[nodiscard]] bool known() const;
  /// The ratio is off 1 by `least` or more, its interval does not hold 1, and nearly all blocks of
  /// one side are on the same side of those of the other.
  [[nodiscard]] bool changed(double least) const;
};

inline constexpr std::size_t kFewestBlocks = 5;
/// Cliff's delta from which a difference is called large (Romano et al. 2006).
inline constexpr double kLargeDelta = 0.474;

/// Values that are not above 0 are left out.
[[nodiscard]] Effect effect_of(const std::vector<double>& a, const std::vector<double>& b);

/// Of Student, two-sided 99.9 %.
[[nodiscard]] double student_999(std::size_t degrees);

/// Pearson's and Spearman's coefficients; NaN where one side does not vary, or of fewer than 3
/// pairs.
struct Correlation {
  std::size_t pairs = 0;
  double pearson = 0, low = 0, high = 0;  // 95 %, after Fisher, as if pairs were independent
  double spearman = 0;
};
[[nodiscard]] Correlation correlation_of(const std::vector<double>& x,
                                         const std::vector<double>& y);

}  // namespace ncclscope::cli::report
