// SPDX-License-Identifier: Apache-2.0
#include "cli/report/reading.h"

namespace ncclscope::cli::report {

void ReadAccount::add(const ReadCounts& counts) {
  const std::lock_guard lock(mutex_);
  counts_.files += counts.files;
  counts_.lines += counts.lines;
  counts_.operations += counts.operations;
  counts_.bad_lines += counts.bad_lines;
  counts_.bad_files += counts.bad_files;
  counts_.cut_files += counts.cut_files;
  counts_.lost_by_writer += counts.lost_by_writer;
}

void ReadAccount::reset() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
  messages_.clear();
  bytes_ = 0;
}

void ReadAccount::tell(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (messages_.size() < kMessages) messages_.push_back(message);
}

ReadCounts ReadAccount::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> ReadAccount::messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}

std::unique_ptr<OperationStream> InputSource::next() {
  const std::size_t number = taken_.fetch_add(1);
  if (number >= inputs_.size()) return nullptr;
  const Input& input = inputs_[number];
  return input.kind == InputKind::kArchive ? open_archive(input, pool_, account_, paths_)
                                           : open_inspector_log(input, pool_, account_);
}

}  // namespace ncclscope::cli::report
