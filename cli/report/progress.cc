// SPDX-License-Identifier: Apache-2.0
#include "cli/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace ncclscope::cli::report {

Progress::Progress(bool wanted) : wanted_(wanted && isatty(STDERR_FILENO) == 1) {
  if (wanted_) thread_ = std::thread([this] { draw_until_end(); });
}

Progress::~Progress() {
  done();
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Progress::step(std::string what, std::function<double()> fraction,
                    std::function<std::string()> detail) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
  fraction_ = std::move(fraction);
  detail_ = std::move(detail);
}

void Progress::done() {
  const std::lock_guard lock(mutex_);
  if (wanted_ && !what_.empty()) std::fputs("\r\x1b[K", stderr);
  what_.clear();
  fraction_ = nullptr;
  detail_ = nullptr;
}

void Progress::draw_until_end() {
  constexpr std::chrono::milliseconds kPeriod{200};
  std::unique_lock lock(mutex_);
  while (!end_) {
    wake_.wait_for(lock, kPeriod, [this] { return end_; });
    if (!end_ && !what_.empty()) draw();
  }
}

void Progress::draw() {
  constexpr int kWidth = 30;
  const double fraction = fraction_ ? fraction_() : -1;
  std::string bar;
  if (fraction >= 0) {
    const int filled = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
    bar = " [" + std::string(static_cast<std::size_t>(filled), '#') +
          std::string(static_cast<std::size_t>(kWidth - filled), '.') + "] " +
          std::to_string(std::clamp(static_cast<int>(fraction * 100), 0, 100)) + " %";
  }
  const std::string detail = detail_ ? "  " + detail_() : "";
  std::fprintf(stderr, "\r\x1b[K%s%s%s", what_.c_str(), bar.c_str(), detail.c_str());
  std::fflush(stderr);
}

}  // namespace ncclscope::cli::report
