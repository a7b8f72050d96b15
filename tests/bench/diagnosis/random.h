// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are the same with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace ncclscope::bench {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// In [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform in the logarithm.
  double log_uniform(double low, double high) {
    return low * std::exp(uniform() * std::log(high / low));
  }
  int below(int n) { return static_cast<int>(uniform() * n); }
  bool chance(double p) { return uniform() < p; }
  /// Standard normal.
  double normal() {
    if (spare_known_) {
      spare_known_ = false;
      return spare_;
    }
    double u = 0, v = 0, s = 0;
    do {
      u = uniform(-1, 1);
      v = uniform(-1, 1);
      s = u * u + v * v;
    } while (s >= 1 || s == 0);
    const double f = std::sqrt(-2 * std::log(s) / s);
    spare_ = v * f;
    spare_known_ = true;
    return u * f;
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
  double spare_ = 0;
  bool spare_known_ = false;
};

}  // namespace ncclscope::bench
