// SPDX-License-Identifier: Apache-2.0
#include "plugin/environment.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

namespace ncclscope::plugin {
namespace {

using wire::StringKey;

static_assert(wire::kMaxEnvironmentRecords * wire::kMaxRecordBytes + wire::kMaxRecordBytes +
                  sizeof(wire::FrameHeader) <=
              wire::kMaxFrameBytes);

// Zero at first, so that the library's file does not hold it.
struct Records {
  std::size_t count;
  std::array<std::size_t, wire::kMaxEnvironmentRecords> bytes;
  alignas(8) std::byte data[wire::kMaxEnvironmentRecords][wire::kMaxRecordBytes];
};
constinit Records records{};

bool is_secret(std::string_view name) noexcept {
  for (const std::string_view word : {"TOKEN", "SECRET", "PASSW", "CREDENTIAL"}) {
    if (name.find(word) != std::string_view::npos) return true;
  }
  return name.ends_with("_KEY");
}

/// Collects variables, record by record.
class Collector {
 public:
  Collector() noexcept { records.count = 0; }

  void add(std::string_view variable) noexcept {
    const std::string_view name = variable.substr(0, variable.find('='));
    // As getenv() has it, the first of a name counts.
    for (std::size_t i = 0; i < names_; ++i) {
      if (known_[i] == name) return;
    }
    if (names_ == known_.size() || is_secret(name) || name.size() > wire::kMaxStringBytes / 2) {
      cut_ = true;
      return;
    }
    cut_ = cut_ || variable.size() > wire::kMaxVariableBytes;
    variable = variable.substr(0, wire::kMaxVariableBytes);
    if (used_ + length(variable) > wire::kMaxRecordBytes - 8 && !begin()) {
      cut_ = true;
      return;
    }
    known_[names_++] = name;
    used_ += length(variable);
    for (StringKey key = StringKey::kVariable; !variable.empty(); key = StringKey::kVariableMore) {
      const std::string_view part = variable.substr(0, wire::kMaxStringBytes);
      writer_->add(key, part);
      variable.remove_prefix(part.size());
    }
  }

  void end() noexcept {
    keep();
    // Only now is it known which one is the last.
    wire::Environment head;
    std::byte* last = records.data[records.count - 1];
    std::memcpy(&head, last, sizeof head);
    head.flags = wire::kEnvironmentEnd;
    if (cut_) head.flags |= wire::kEnvironmentCut;
    std::memcpy(last, &head, sizeof head);
  }

 private:
  /// In a record: headers and padding too.
  static std::size_t length(std::string_view variable) noexcept {
    std::size_t bytes = 0;
    for (std::size_t at = 0; at < variable.size(); at += wire::kMaxStringBytes) {
      const std::size_t part = std::min(variable.size() - at, wire::kMaxStringBytes);
      bytes += (sizeof(wire::StringHeader) + part + 3) / 4 * 4;
    }
    return bytes;
  }
  bool begin() noexcept {
    if (records.count + 1 == wire::kMaxEnvironmentRecords) return false;
    keep();
    writer_.emplace(wire::Environment{}, wire::RecordType::kEnvironment);
    used_ = sizeof(wire::Environment);
    return true;
  }
  void keep() noexcept {
    const auto record = writer_->finish();
    std::memcpy(records.data[records.count], record.data(), record.size());
    records.bytes[records.count++] = record.size();
  }

  std::optional<wire::StringRecordWriter<wire::Environment>> writer_{
      std::in_place, wire::Environment{}, wire::RecordType::kEnvironment};
  std::size_t used_ = sizeof(wire::Environment);  // of the record under construction
  std::array<std::string_view, wire::kMaxVariables> known_{};
  std::size_t names_ = 0;
  bool cut_ = false;
};

}  // namespace

void read_environment(const char* const* variables, bool tell) noexcept {
  records.count = 0;
  if (!tell) return;
  Collector collector;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    if (std::strncmp(*variables, "NCCL_", 5) == 0 && std::strchr(*variables, '=') != nullptr)
      collector.add(*variables);
  }
  collector.end();
}

void add_environment(wire::FrameWriter& frame) noexcept {
  for (std::size_t i = 0; i < records.count; ++i)
    frame.add_bytes({records.data[i], records.bytes[i]});
}

}  // namespace ncclscope::plugin
