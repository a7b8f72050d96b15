// SPDX-License-Identifier: Apache-2.0
// All versions of NCCL's profiler plugin interface, and the symbol names under which NCCL looks for
// their tables. Declarations only.
#pragma once

#include "proto/nccl/profiler_v1.h"
#include "proto/nccl/profiler_v2.h"
#include "proto/nccl/profiler_v3.h"
#include "proto/nccl/profiler_v4.h"
#include "proto/nccl/profiler_v5.h"
#include "proto/nccl/profiler_v6.h"
#include "proto/nccl/profiler_v7.h"

namespace ncclscope::nccl {

inline constexpr int kNewestInterface = 7;
/// Symbol of interface version v at index v - 1.
inline constexpr const char* kProfilerSymbols[] = {
    "ncclProfiler_v1", "ncclProfiler_v2", "ncclProfiler_v3", "ncclProfiler_v4",
    "ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"};

}  // namespace ncclscope::nccl
