// SPDX-License-Identifier: Apache-2.0
//
// Where an exposition's bytes go in pieces: into a string as they are, or compressed on the way, so
// that a large exposition never exists uncompressed.
//   Thread: one per object.   Errors: zlib can only run out of memory; then ok() is false and
//   nothing more is kept.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace ncclscope::agent {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::string_view bytes) = 0;
};

class StringSink final : public ByteSink {
 public:
  explicit StringSink(std::string& out) : out_(out) {}
  void write(std::string_view bytes) override { out_ += bytes; }

 private:
  std::string& out_;
};

/// gzip, level 1: six times faster than the default for some percent more bytes.
class GzipSink final : public ByteSink {
 public:
  explicit GzipSink(std::string& out);
  ~GzipSink() override;
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void write(std::string_view bytes) override;
  /// Writes the end of the stream. False if anything went wrong: `out` is then not to be used.
  [[nodiscard]] bool finish();

 private:
  struct Stream;
  void deflate_all(std::string_view bytes, int flush);

  std::string& out_;
  std::unique_ptr<Stream> stream_;
  bool ok_ = false;
};

}  // namespace ncclscope::agent
