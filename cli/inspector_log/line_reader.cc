// SPDX-License-Identifier: Apache-2.0
#include "cli/inspector_log/line_reader.h"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace ncclscope::cli::inspector_log {
namespace {

constexpr std::size_t kTextPerInput = 4;  // sizes of the buffers; text compresses better than that
constexpr std::byte kGzipMagic[2] = {std::byte{0x1F}, std::byte{0x8B}};

}  // namespace

/// ISA-L's, which inflates text of much repetition four times as fast as zlib. It keeps some output
/// for itself: it must be asked again when all input is taken.
struct LineReader::Inflater {
  Inflater() {
    isal_inflate_init(&state);
    state.crc_flag = ISAL_GZIP;  // with header, checksum and length
  }

  inflate_state state{};
  bool between_members = true;
};

namespace {

const char* inflate_error(int status) {
  switch (status) {
    case ISAL_INVALID_BLOCK:
      return "no such block";
    case ISAL_INVALID_SYMBOL:
      return "no such symbol";
    case ISAL_INVALID_LOOKBACK:
      return "a match before the begin";
    case ISAL_INVALID_WRAPPER:
      return "incorrect header";
    case ISAL_UNSUPPORTED_METHOD:
      return "unknown method";
    case ISAL_INCORRECT_CHECKSUM:
      return "incorrect checksum";
    default:
      return "no reason given";
  }
}

}  // namespace

LineReader::LineReader(std::string path, std::size_t buffer_bytes)
    : path_(std::move(path)), buffer_bytes_(buffer_bytes) {}

LineReader::~LineReader() {
  if (file_ >= 0) close(file_);
}

void LineReader::fail(const std::string& reason) {
  error_ = path_ + ":" + std::to_string(line_number_ + 1) + ": " + reason;
  at_end_ = true;
}

bool LineReader::open() {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(cppcoreguidelines-pro-type-vararg)
  if (file_ < 0) {
    error_ = path_ + ": cannot be opened: " + std::generic_category().message(errno);
    return false;
  }
  input_.resize(buffer_bytes_ / kTextPerInput);
  text_.resize(buffer_bytes_);
  input_end_ = read_file(input_.data(), input_.size());
  if (!error_.empty()) return false;
  if (input_end_ < sizeof kGzipMagic ||
      std::memcmp(input_.data(), kGzipMagic, sizeof kGzipMagic) != 0)
    return true;
  inflater_ = std::make_unique<Inflater>();
  return true;
}

/// 0 at the end of the file; what cannot be read sets error_.
std::size_t LineReader::read_file(std::byte* into, std::size_t size) {
  while (true) {
    const ssize_t got = ::read(file_, into, size);
    if (got >= 0) {
      file_bytes_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    }
    if (errno == EINTR) continue;
    fail("cannot be read: " + std::generic_category().message(errno));
    return 0;
  }
}

std::size_t LineReader::read_text(char* into, std::size_t size) {
  if (inflater_ != nullptr) return inflate_text(into, size);
  if (input_begin_ == input_end_) return read_file(reinterpret_cast<std::byte*>(into), size);
  const std::size_t count = std::min(size, input_end_ - input_begin_);
  std::memcpy(into, input_.data() + input_begin_, count);
  input_begin_ += count;
  return count;
}

std::size_t LineReader::inflate_text(char* into, std::size_t size) {
  inflate_state& state = inflater_->state;
  state.next_out = reinterpret_cast<std::uint8_t*>(into);
  state.avail_out = static_cast<std::uint32_t>(size);
  bool file_ended = false;
  while (state.avail_out == size) {
    if (input_begin_ == input_end_) {
      input_begin_ = 0;
      input_end_ = read_file(input_.data(), input_.size());
      file_ended = input_end_ == 0;
      if (file_ended && (inflater_->between_members || !error_.empty())) return 0;
    }
    state.next_in = reinterpret_cast<std::uint8_t*>(input_.data() + input_begin_);
    state.avail_in = static_cast<std::uint32_t>(input_end_ - input_begin_);
    const int status = isal_inflate(&state);
    input_begin_ = input_end_ - state.avail_in;
    if (status < 0) {
      fail(std::string("the compressed data is damaged (") + inflate_error(status) + ")");
      break;
    }
    inflater_->between_members = state.block_state == ISAL_BLOCK_FINISH;
    if (inflater_->between_members) isal_inflate_reset(&state);
    if (file_ended && state.avail_out == size) {
      compressed_data_cut_ = !inflater_->between_members;
      break;
    }
  }
  return size - state.avail_out;
}

/// More text after end_; false when there is none.
bool LineReader::fill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(text_.data(), text_.data() + begin_, end_ - begin_);
    scanned_ -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == text_.size()) {
    if (text_.size() >= kMaxLineBytes) {
      fail("a line of more than " + std::to_string(kMaxLineBytes >> 20) + " MiB; is this a log?");
      return false;
    }
    text_.resize(text_.size() * 2);
  }
  const std::size_t got = read_text(text_.data() + end_, text_.size() - end_);
  at_end_ = at_end_ || got == 0;
  end_ += got;
  return got > 0;
}

LineReader::Next LineReader::next(std::string_view& line) {
  if (file_ < 0 && (!error_.empty() || !open())) return Next::kFailed;
  while (true) {
    const auto* newline =
        static_cast<const char*>(std::memchr(text_.data() + scanned_, '\n', end_ - scanned_));
    if (newline != nullptr) {
      const auto position = static_cast<std::size_t>(newline - text_.data());
      line = {text_.data() + begin_, position - begin_};
      begin_ = scanned_ = position + 1;
      ++line_number_;
      return Next::kLine;
    }
    scanned_ = end_;
    if (fill()) continue;
    if (!error_.empty()) return Next::kFailed;
    if (begin_ == end_) return Next::kEnd;
    line = {text_.data() + begin_, end_ - begin_};
    begin_ = scanned_ = end_;
    ++line_number_;
    return Next::kCut;
  }
}

}  // namespace ncclscope::cli::inspector_log
