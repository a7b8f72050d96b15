// SPDX-License-Identifier: Apache-2.0
//
// gzip through zlib's deflate.
#include "agent/export/byte_sink.h"

#include <zlib.h>

#include <algorithm>

namespace ncclscope::agent {

struct GzipSink::Stream {
  z_stream z{};
};

namespace {
constexpr int kLevel = 1;
constexpr int kWindowBits = 15;
constexpr int kGzipWrapper = 16;
constexpr int kMemoryLevel = 8;
constexpr std::size_t kGrowBytes = 64 * 1024;
}  // namespace

GzipSink::GzipSink(std::string& out) : out_(out), stream_(std::make_unique<Stream>()) {
  ok_ = deflateInit2(&stream_->z, kLevel, Z_DEFLATED, kWindowBits + kGzipWrapper, kMemoryLevel,
                     Z_DEFAULT_STRATEGY) == Z_OK;
}

GzipSink::~GzipSink() {
  deflateEnd(&stream_->z);
}

void GzipSink::deflate_all(std::string_view bytes, int flush) {
  if (!ok_) return;
  z_stream& z = stream_->z;
  z.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib does not write to it
  z.avail_in = static_cast<uInt>(bytes.size());
  for (;;) {
    const std::size_t used = out_.size();
    out_.resize(used + kGrowBytes);
    z.next_out = reinterpret_cast<Bytef*>(out_.data() + used);
    z.avail_out = static_cast<uInt>(kGrowBytes);
    const int result = deflate(&z, flush);
    out_.resize(used + kGrowBytes - z.avail_out);
    if (result == Z_STREAM_END) return;
    if (result != Z_OK && result != Z_BUF_ERROR) {
      ok_ = false;
      return;
    }
    if (flush == Z_NO_FLUSH && z.avail_in == 0 && z.avail_out != 0) return;
  }
}

void GzipSink::write(std::string_view bytes) {
  constexpr std::size_t kMaxInput = 1u << 30;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, std::min(bytes.size(), kMaxInput));
    deflate_all(part, Z_NO_FLUSH);
    bytes.remove_prefix(part.size());
  }
}

bool GzipSink::finish() {
  deflate_all({}, Z_FINISH);
  return ok_;
}

}  // namespace ncclscope::agent
