// SPDX-License-Identifier: Apache-2.0
//
// How wire enums are spelled for people and in label values. Names are never changed; unknown
// values are "unknown".
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "proto/wire/frame.h"

namespace ncclscope::wire {

/// "" for kNone.
[[nodiscard]] constexpr std::string_view name(UntimedReason r) noexcept {
  constexpr std::string_view kNames[] = {
      "",     "not_carried", "api_only", "copy_engine", "counter_drift", "timing_rejected",
      "lost", "unfinished",  "self",     "not_asked"};
  const auto i = static_cast<std::size_t>(r);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}
/// Reasons that have a name of their own, kNone included.
inline constexpr std::size_t kNamedUntimedReasons = 10;

[[nodiscard]] constexpr std::string_view name(DropReason r) noexcept {
  constexpr std::string_view kNames[] = {"no_operation_slot", "no_communicator", "ring_busy",
                                         "overwritten",       "abandoned",       "disabled"};
  const auto i = static_cast<std::size_t>(r);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}
inline constexpr std::size_t kNamedDropReasons = 6;

[[nodiscard]] constexpr std::string_view name(TimingSource t) noexcept {
  constexpr std::string_view kNames[] = {"none", "gpu", "host_callback"};
  const auto i = static_cast<std::size_t>(t);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

[[nodiscard]] constexpr std::string_view name(DetailLevel l) noexcept {
  constexpr std::string_view kNames[] = {"normal", "low", "full"};
  const auto i = static_cast<std::size_t>(l);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

}  // namespace ncclscope::wire
