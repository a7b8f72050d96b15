// SPDX-License-Identifier: Apache-2.0
//
// The last collectives that a rank called, by their index. Where NCCL reports no kernels nobody
// sees operations end; but ranks that stand still at the same number of calls must have made the
// same calls, and this tells whether they did.
//   Cost: O(1) per record; the signature is made when it is asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"

namespace ncclscope::agent {

class CallTail {
 public:
  static constexpr std::uint64_t kCalls = 16;

  /// A record came, in any order. `low` are the low 32 bits of its index.
  void add(std::uint32_t low, model::Function function, model::DataType datatype,
           std::uint64_t count, std::int32_t root) {
    calls_[low % kCalls] = {count, root, static_cast<std::uint16_t>(low / kCalls + 1), function,
                            datatype};
  }

  /// Of the last calls of a rank that made `called`: equal where they were the same. 0: some of
  /// them did not come here.
  [[nodiscard]] std::uint64_t signature(std::uint64_t called) const {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::uint64_t i = called > kCalls ? called - kCalls : 0; i < called; ++i) {
      const Call* call = find(i);
      if (call == nullptr) return 0;
      hash = (hash ^
              model::operation_signature(call->function, call->count, call->datatype, call->root)) *
             0x100000001B3u;
    }
    hash &= 0xFFFFFFFFFFFFu;
    return hash == 0 ? 1 : hash;
  }

  /// True if the last of `called` calls ends on no rank before all have called it.
  [[nodiscard]] bool waits_for_all(std::uint64_t called) const {
    const Call* call = called == 0 ? nullptr : find(called - 1);
    return call != nullptr && model::is_synchronising(call->function);
  }

 private:
  struct Call {
    std::uint64_t count = 0;
    std::int32_t root = -1;
    std::uint16_t round = 0;  // low bits of index / kCalls + 1; 0 = none came
    model::Function function{};
    model::DataType datatype{};
  };

  [[nodiscard]] const Call* find(std::uint64_t index) const {
    const Call& call = calls_[index % kCalls];
    const auto low = static_cast<std::uint32_t>(index);
    return call.round == static_cast<std::uint16_t>(low / kCalls + 1) && call.round != 0 ? &call
                                                                                         : nullptr;
  }

  std::array<Call, kCalls> calls_{};
};
static_assert(sizeof(CallTail) == 256);

}  // namespace ncclscope::agent
