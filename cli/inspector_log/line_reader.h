// SPDX-License-Identifier: Apache-2.0
//
// Lines of a text file, plain or gzip (told by content, not by name; several gzip members in a row
// are one text). Memory: one buffer, which grows to the longest line and at most to kMaxLineBytes.
// The file is whatever somebody left there: cut anywhere, damaged, without a last newline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::cli::inspector_log {

class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

  enum class Next : std::uint8_t {
    kLine,    // a line that ended with a newline
    kCut,     // the file's last text, which no newline ends: it may be half a line
    kEnd,     // nothing more
    kFailed,  // nothing more can be read: see error()
  };

  /// `path` is opened at the first next().
  /// @param buffer_bytes  of text that is read at a time
  explicit LineReader(std::string path, std::size_t buffer_bytes = std::size_t{1} << 18);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// The next line, without its newline; valid until the next call.
  [[nodiscard]] Next next(std::string_view& line);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Of the line that next() gave last, counted from 1.
  [[nodiscard]] std::uint64_t line_number() const { return line_number_; }
  /// Bytes of the file (compressed ones, if it is) taken so far.
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  /// True after the end if the compressed data stopped in the middle.
  [[nodiscard]] bool compressed_data_cut() const { return compressed_data_cut_; }
  /// Why next() returned kFailed: file, line, reason.
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  struct Inflater;
  bool open();
  bool fill();
  std::size_t read_file(std::byte* into, std::size_t size);
  std::size_t read_text(char* into, std::size_t size);
  std::size_t inflate_text(char* into, std::size_t size);
  void fail(const std::string& reason);

  std::string path_;
  std::size_t buffer_bytes_;
  int file_ = -1;
  bool at_end_ = false;
  bool compressed_data_cut_ = false;
  std::unique_ptr<Inflater> inflater_;
  std::vector<std::byte> input_;  // what was read from the file and not yet used
  std::size_t input_begin_ = 0, input_end_ = 0;
  std::vector<char> text_;
  std::size_t begin_ = 0, scanned_ = 0,
              end_ = 0;  // in text_: the next line, what has no newline, what is filled
  std::uint64_t line_number_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::string error_;
};

}  // namespace ncclscope::cli::inspector_log
