// SPDX-License-Identifier: Apache-2.0
//
// A line on the terminal that says how far long work is, drawn by a thread of its own five times a
// second; nothing where standard error is no terminal, or nobody wants it.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ncclscope::cli::report {

class Progress {
 public:
  explicit Progress(bool wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is done now. `fraction` is asked by the drawing thread: 0..1, negative = not known.
  /// `detail` likewise.
  void step(std::string what, std::function<double()> fraction = {},
            std::function<std::string()> detail = {});
  /// Nothing any more: its functions are not asked again once this returns.
  void done();

 private:
  void draw_until_end();
  void draw();

  bool wanted_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool end_ = false;
  std::string what_;
  std::function<double()> fraction_;
  std::function<std::string()> detail_;
  std::thread thread_;
};

}  // namespace ncclscope::cli::report
