// SPDX-License-Identifier: Apache-2.0
//
// /metrics/inspector: the last complete window of every job under the names and labels of NCCL
// Inspector's textfiles, for dashboards that were made for those. Off unless configured.
//   Thread: any, several at once; reads the newest snapshot.
//   What had no operation in the window has no series, and none comes twice.
#pragma once

#include <string>

#include "agent/aggregate/snapshot_store.h"
#include "agent/export/byte_sink.h"
#include "agent/export/http.h"
#include "agent/export/text_writer.h"

namespace ncclscope::agent {

void write_inspector_page(const Snapshot& snapshot, TextFormat format, ByteSink& sink);

class InspectorEndpoint {
 public:
  explicit InspectorEndpoint(const SnapshotStore& store) : store_(store) {}

  [[nodiscard]] HttpResponse page(const HttpRequest& request) const;
  /// The endpoint must outlive the router.
  void add_to(HttpRouter& router);

 private:
  const SnapshotStore& store_;
};

}  // namespace ncclscope::agent
