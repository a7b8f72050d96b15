// SPDX-License-Identifier: Apache-2.0
//
// Findings in words. Pure.
#pragma once

#include <string>

#include "verdict/judge.h"

namespace ncclscope::verdict {

/// "GPU 1 of node0 is late". No full stop.
[[nodiscard]] std::string headline(const Job& job, const Finding& finding);

/// What it rests on, in one or more sentences.
[[nodiscard]] std::string explanation(const Job& job, const Finding& finding);

/// "rank 2 (global rank 2, GPU 0 of node1)".
[[nodiscard]] std::string describe_member(const Job& job, std::uint32_t member);
/// "GPU 0 of node1", with "(global rank 2)" behind it where that is known.
[[nodiscard]] std::string describe_gpu(const Job& job, std::uint32_t gpu);
/// "communicator dp_group (00c0ffee00c0ffee, 4 ranks)".
[[nodiscard]] std::string describe_communicator(const Job& job, std::uint32_t communicator);
/// "42.0 s", "3 min 20 s", "85 ms".
[[nodiscard]] std::string describe_seconds(double seconds);

}  // namespace ncclscope::verdict
